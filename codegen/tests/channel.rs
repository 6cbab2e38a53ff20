//! Channels: what arrives by each transport, which mistakes end the trace, and which the simulator finds.

use std::sync::Arc;

use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::{Dtype, Kernel, Planted, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Findings, Machine, Options, Outcome, Strategy};

const RANKS: u32 = 3;
const ROW: u32 = 64;
const ROWS: u32 = 3;

/// Rows of a rank to every rank, each with its scales.
#[derive(Clone)]
struct Post {
    transport: Transport,
    banks: u32,
    credits: bool,
    dtype: Dtype,
    scales: u32,
}

impl Post {
    fn new(transport: Transport) -> Post {
        let credits = !matches!(transport, Transport::Flags | Transport::Bulk);
        Post { transport, banks: 2, credits, dtype: Dtype::F32, scales: 4 }
    }

    fn shape(&self) -> ChannelShape {
        ChannelShape::new(self.transport, RANKS, Slots::BySender(ROWS))
            .banks(self.banks)
            .credits(self.credits)
    }
}

#[derive(Message)]
#[message(config = Post)]
struct Row {
    /// A row.
    #[len(|_| ROW)]
    #[dtype(|c| c.dtype)]
    row: AnyField,
    /// Its scales, where it has some.
    #[len(|c| c.scales)]
    scales: Option<Field<f32>>,
}

#[derive(KernelArgs)]
#[args(config = Post)]
struct PostArgs {
    #[len(|_| u64::from(ROW * ROWS))]
    #[dtype(|c| c.dtype)]
    x: AnyPtr,
    #[len(|_| u64::from(4 * ROWS))]
    x_scales: Ptr<f32>,
    #[len(|_| u64::from(RANKS * ROW * ROWS))]
    #[dtype(|c| c.dtype)]
    out: AnyPtr,
    #[len(|_| u64::from(RANKS * 4 * ROWS))]
    out_scales: Ptr<f32>,
    /// Rows of all ranks.
    #[channel(|c| c.shape())]
    rows: Channel<Row>,
    epoch: EpochWord,
}

/// Sends every row to every rank.
#[kernel]
fn post(c: &Post, a: &PostArgs) {
    let rows = a.rows.open(a.epoch.begin());
    role("send", 2, |b| {
        for i in b.strided(ROWS) {
            let row = rows.to(Peers::all()).slot(i);
            if c.transport == Transport::Bulk {
                row.field(rows.row).copy(0, &a.x, i * ROW, ROW);
            } else {
                // In two pieces.
                for start in [0, ROW / 2] {
                    let x = a.x.load(i * ROW + start, ROW / 2);
                    row.field(rows.row).put(u64::from(start), x);
                }
            }
            if let Some(scales) = rows.scales {
                row.field(scales).put(0, a.x_scales.load(i * 4, 4));
            }
            row.done();
        }
    });
    role("receive", 2, |b| {
        for i in b.strided(ROWS * RANKS) {
            let row = rows.from(i % RANKS).slot(i / RANKS);
            let to = (i % RANKS) * ROWS + i / RANKS;
            // Also by an offset of 64 bits.
            a.out.store(to * ROW, row.field(rows.row).load(0u64, ROW));
            if let Some(scales) = rows.scales {
                a.out_scales.store(to * 4, row.field(scales).load(0, 4));
            }
        }
    });
    rows.credits();
}

fn traced<A: KernelArgs>(config: &A::Config, kernel: fn(&A::Config, &A)) -> Kernel {
    trace_args::<A>(TraceMeta::new("channel", RANKS, 32, 2), config, kernel).unwrap_or_else(|e| panic!("{e}"))
}

fn launched(kernel: Kernel, launches: u32) -> Machine {
    verify::verify(kernel.clone()).unwrap();
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..RANKS {
        for name in ["x", "x_scales"] {
            let Some(param) = kernel.kernel().params.iter().find(|p| p.name == name) else { continue };
            let numbers: Vec<f32> = (0..param.len).map(|i| (rank * 100 + i as u32) as f32).collect();
            match param.dtype {
                Dtype::Bf16 => {
                    let numbers: Vec<bf16> = numbers.iter().map(|x| bf16::from_f32(*x)).collect();
                    machine.write(rank, name, 0, &numbers).unwrap();
                }
                _ => machine.write(rank, name, 0, &numbers).unwrap(),
            }
        }
    }
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

/// The first finding over some seeds of both strategies, or what the last run left.
fn explored(machine: &Machine) -> Result<Outcome, Box<Findings>> {
    let mut last = None;
    for seed in 0..12 {
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            last = Some(machine.run(&Options { seed, strategy, ..Options::default() })?);
        }
    }
    Ok(last.unwrap())
}

fn clean(machine: &Machine) -> Outcome {
    explored(machine).unwrap_or_else(|e| panic!("{e}"))
}

const ALL: [Transport; 4] = [Transport::Flags, Transport::Bulk, Transport::Packets, Transport::Ll];

#[test]
fn what_is_put_is_loaded_by_each_transport() {
    for transport in ALL {
        for dtype in [Dtype::F32, Dtype::Bf16].into_iter().filter(|d| transport.carries(ROW, *d)) {
            for scales in [0, 4] {
                let config = Post { dtype, scales, ..Post::new(transport) };
                let outcome = clean(&launched(traced(&config, post), 4));
                for rank in 0..RANKS {
                    let out: Vec<f32> = match dtype {
                        Dtype::Bf16 => {
                            let out = outcome.memory.read::<bf16>(rank, "out").unwrap();
                            out.iter().map(|x| x.to_f32()).collect()
                        }
                        _ => outcome.memory.read::<f32>(rank, "out").unwrap().to_vec(),
                    };
                    let want = |i: usize, each: usize| (i / each * 100 + i % each) as f32;
                    for (i, got) in out.into_iter().enumerate() {
                        let want = want(i, (ROW * ROWS) as usize);
                        let want = if dtype == Dtype::Bf16 { bf16::from_f32(want).to_f32() } else { want };
                        assert_eq!(got, want, "{} element {i}", transport.name());
                    }
                    if scales > 0 {
                        let out = outcome.memory.read::<f32>(rank, "out_scales").unwrap();
                        let agree = out.iter().enumerate().all(|(i, got)| *got == want(i, 4 * ROWS as usize));
                        assert!(agree, "{}", transport.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_bank_or_credits_left_out_are_found_within_four_launches() {
    let kinds = ALL.map(|transport| {
        let config = Post::new(transport);
        let kind =
            |config: Post| explored(&launched(traced(&config, post), 4)).err().map(|f| f.list[0].kind.name());
        // Credits let flags have them too, to no harm.
        assert_eq!(kind(Post { credits: true, ..config.clone() }), None);
        [kind(Post { banks: 1, ..config.clone() }), kind(Post { credits: false, ..config })]
    });
    let with_flags = [Some("lost-signal"), None];
    let lost = [Some("lost-packet"); 2];
    assert_eq!(kinds, [with_flags, with_flags, lost, lost]);
    // Two to a word.
    let config = Post { dtype: Dtype::Bf16, ..Post::new(Transport::Ll) };
    for lacking in [Post { banks: 1, ..config.clone() }, Post { credits: false, ..config }] {
        let found = explored(&launched(traced(&lacking, post), 4)).unwrap_err();
        assert_eq!(found.list[0].kind.name(), "lost-packet");
    }
}

#[test]
fn credits_of_three_banks_are_those_of_the_launch_before_and_are_needed() {
    for transport in [Transport::Packets, Transport::Ll] {
        let config = Post { banks: 3, ..Post::new(transport) };
        // From the first epoch on, and over the last one: MAX - 2, MAX - 1, MAX, 4, 5, 6, 7.
        for before in [0, u32::MAX - 3] {
            let mut machine = launched(traced(&config, post), 7);
            (0..RANKS).for_each(|rank| machine.write(rank, "epoch", 0, &[before]).unwrap());
            clean(&machine);
        }
        let without = launched(traced(&Post { credits: false, ..config }, post), 6);
        assert_eq!(
            explored(&without).unwrap_err().list[0].kind.name(),
            "lost-packet",
            "{}",
            transport.name()
        );
    }
}

/// What owners send for each row, summed at its source: in a batch of rows, or each for itself.
struct Sums {
    transport: Transport,
    batch: u32,
}

#[derive(KernelArgs)]
#[args(config = Sums)]
struct SumsArgs {
    #[len(|_| u64::from(ROW * ROWS))]
    x: Ptr<f32>,
    #[len(|_| u64::from(ROW * ROWS))]
    out: Ptr<f32>,
    /// A part of a row's sum, of each rank.
    #[channel(|c| {
        let shape = ChannelShape::new(c.transport, RANKS, Slots::ByNumber(ROWS));
        if c.batch > 1 { shape.batches(ROWS.div_ceil(c.batch) * RANKS) } else { shape }
    })]
    #[len(|_| ROW)]
    parts: Channel<f32>,
    epoch: EpochWord,
}

/// Sums each row over the ranks but one, which sends nothing: of batch `i`, rank `i`.
#[kernel]
fn sums(c: &Sums, a: &SumsArgs) {
    let parts = a.parts.open(a.epoch.begin());
    role("send", 1, |b| {
        for i in b.strided(ROWS.div_ceil(c.batch)) {
            if i != rank() {
                if c.batch > 1 {
                    let batch = parts.to(Peers::all()).batch();
                    for row in i * c.batch..((i + 1) * c.batch).min(ROWS) {
                        batch.slot(row).put(0, a.x.load(row * ROW, ROW));
                    }
                    batch.done(i * RANKS + rank());
                } else {
                    let part = parts.to(Peers::all()).slot(i);
                    part.put(0, a.x.load(i * ROW, ROW));
                    part.done();
                }
            }
        }
    });
    role("sum", 1, |b| {
        for row in b.strided(ROWS) {
            let some = parts.from_some(!bit(row / c.batch) & 0b111u64);
            let got = if c.batch > 1 { some.batch(row / c.batch, row) } else { some.slot(row) };
            let mut sum = var(splat(0f32, ROW));
            for part in got.load_each(0u32, RANKS, 0, ROW) {
                sum += part;
            }
            a.out.store(row * ROW, &sum);
        }
    });
    parts.credits();
}

#[test]
fn a_sum_over_a_set_of_ranks_comes_by_each_transport() {
    for (transport, batch) in
        [(Transport::Flags, 1), (Transport::Flags, 2), (Transport::Packets, 1), (Transport::Ll, 1)]
    {
        let outcome = clean(&launched(traced(&Sums { transport, batch }, sums), 4));
        for rank in 0..RANKS {
            for (i, got) in outcome.memory.read::<f32>(rank, "out").unwrap().iter().enumerate() {
                let left_out = i / (ROW * batch) as usize;
                let others = (0..RANKS as usize).filter(|r| *r != left_out);
                let want: usize = others.map(|r| r * 100 + i).sum();
                assert_eq!(*got, want as f32, "{} element {i}", transport.name());
            }
        }
    }
}

/// A kernel over one channel of 64 floats in two slots, for mistakes.
struct Slip {
    shape: ChannelShape,
    len: u32,
    dtype: Dtype,
}

/// A channel, and what is done with it.
type Mistake = (fn() -> Slip, fn(&SlipArgs));

#[derive(KernelArgs)]
#[args(config = Slip)]
struct SlipArgs {
    #[len(|_| 64)]
    #[dtype(|c| c.dtype)]
    x: AnyPtr,
    #[channel(|c| c.shape.clone())]
    #[len(|c| c.len)]
    #[dtype(|c| c.dtype)]
    data: AnyChannel,
    #[channel(|_| ChannelShape::new(Transport::Flags, RANKS, Slots::Shared(1)))]
    #[len(|_| 64)]
    other: Channel<f32>,
    epoch: EpochWord,
}

fn slip(config: Slip, body: fn(&SlipArgs)) -> String {
    let meta = TraceMeta::new("slip", RANKS, 32, 2);
    let error = trace_args::<SlipArgs>(meta, &config, |_, a| body(a)).expect_err("a mistake");
    assert!(error.loc.file.ends_with("channel.rs") && error.loc.file.contains("tests"), "{error}");
    let source = include_str!("channel.rs").lines().nth(error.loc.line as usize - 1).unwrap();
    let notes: Vec<_> = error.notes.iter().map(|(_, what)| format!("  note: {what}\n")).collect();
    format!("{}\n  at {}\n{}  help: {}\n", error.message, source.trim(), notes.concat(), error.help)
}

/// In a role, with the channel open.
fn in_role(a: &SlipArgs, body: impl FnOnce(OpenChannel<'_, peerwarp_codegen::dsl::Any>)) {
    let data = a.data.open(a.epoch.begin());
    role("all", 1, |_| body(data));
    data.credits();
}

#[test]
fn mistakes_end_the_trace() {
    let shape = |transport| ChannelShape::new(transport, RANKS, Slots::BySender(2));
    let flags = || two(Transport::Flags);
    let packets = || two(Transport::Packets);
    let nothing: fn(&SlipArgs) = |a| in_role(a, |_| {});
    let mut said = vec![];
    // Declarations.
    for config in [
        Slip { shape: shape(Transport::Packets), len: 66, ..flags() },
        Slip { dtype: Dtype::I32, ..packets() },
        Slip { dtype: Dtype::U32, ..packets() },
        Slip { shape: shape(Transport::Packets).read_many(), ..flags() },
        Slip { shape: shape(Transport::Packets).batches(3), ..flags() },
        Slip { shape: shape(Transport::Ll), dtype: Dtype::Fp8, ..flags() },
        Slip { shape: shape(Transport::Ll), dtype: Dtype::Bf16, len: 63 },
        Slip { shape: shape(Transport::Flags).banks(4), ..flags() },
        Slip { shape: ChannelShape::new(Transport::Flags, 5, Slots::Shared(1)), ..flags() },
        Slip { shape: ChannelShape::new(Transport::Flags, RANKS, Slots::BySender(1 << 31)), ..flags() },
        Slip { len: 0, ..flags() },
        Slip { shape: shape(Transport::Ll), len: 1 << 30, ..flags() },
    ] {
        said.push(slip(config, nothing));
    }
    // Messages.
    let cases: [Mistake; 15] = [
        (
            || Slip { dtype: Dtype::Bf16, ..two(Transport::Ll) },
            |a| {
                in_role(a, |data| data.to(Peers::others()).slot(0).put(1, a.x.load(0, 32)));
            },
        ),
        (
            || Slip { dtype: Dtype::Bf16, ..two(Transport::Ll) },
            |a| {
                in_role(a, |data| data.to(Peers::others()).slot(0).put(0, a.x.load(0, 31)));
            },
        ),
        (
            || two(Transport::Flags),
            |a| {
                in_role(a, |data| data.to(Peers::others()).slot(0).put(0, a.x.load(0, 64)));
            },
        ),
        (
            || two(Transport::Packets),
            |a| {
                in_role(a, |data| data.to(Peers::others()).slot(0).put(0, a.x.load(0, 64)));
            },
        ),
        (|| two(Transport::Packets), |a| in_role(a, |data| data.to(Peers::others()).slot(0).done())),
        (
            || two(Transport::Flags),
            |a| {
                in_role(a, |data| data.to(Peers::others()).slot(0).put(8, a.x.load(0, 64)));
            },
        ),
        (
            || two(Transport::Packets),
            |a| {
                in_role(a, |data| data.to(Peers::others()).slot(0).put(2, a.x.load(0, 32)));
            },
        ),
        (
            || two(Transport::Flags),
            |a| {
                in_role(a, |data| a.x.store(0, data.from(0).slot(0).load(0, 65)));
            },
        ),
        (|| two(Transport::Flags), |a| in_role(a, |data| a.x.store(0, data.from(0).slot(2).load(0, 64)))),
        (
            || two(Transport::Flags),
            |a| {
                in_role(a, |data| {
                    let message = data.from(0).slot(0);
                    a.x.store(0, message.load(0, 64));
                    a.x.store(0, message.load(0, 64));
                });
            },
        ),
        (
            || two(Transport::Flags),
            |a| {
                let epoch = a.epoch.begin();
                let data = a.data.open(epoch);
                role("all", 1, |_| {
                    let message = data.to(Peers::others()).slot(0);
                    message.field(*a.other.open(epoch)).put(0, a.x.load_f32(0, 64));
                });
            },
        ),
        (
            || two(Transport::Packets),
            |a| {
                let data = a.data.open(a.epoch.begin());
                role("all", 1, |_| {
                    let message = data.to(Peers::others()).slot(0);
                    message.put(0, a.x.load(0, 64));
                    message.done();
                    a.x.store(0, data.from(0).slot(0).load(0, 64));
                });
            },
        ),
        (
            || two(Transport::Flags),
            |a| {
                in_role(a, |data| a.x.store(0, data.from_some(3u64).slot(0).load_each(0u32, 1, 0, 64)[0]));
            },
        ),
        (|| two(Transport::Flags), |a| in_role(a, |data| data.to(Peers::others()).batch().done(0))),
        (
            || Slip { shape: two(Transport::Flags).shape.batches(2), ..two(Transport::Flags) },
            |a| {
                in_role(a, |data| data.to(Peers::others()).slot(0).done());
            },
        ),
    ];
    for (config, body) in cases {
        said.push(slip(config(), body));
    }
    insta::assert_snapshot!(said.join("\n"));
}

/// Two slots of 64 floats of each sender.
fn two(transport: Transport) -> Slip {
    Slip { shape: ChannelShape::new(transport, RANKS, Slots::BySender(2)), len: 64, dtype: Dtype::F32 }
}

/// Rows that several blocks put together.
#[derive(Clone, Copy)]
struct Together {
    transport: Transport,
    parts: u32,
}

#[derive(KernelArgs)]
#[args(config = Together)]
struct TogetherArgs {
    #[len(|_| u64::from(ROW))]
    x: Ptr<f32>,
    #[len(|_| u64::from(RANKS * ROW))]
    out: Ptr<f32>,
    /// A row of each rank.
    #[channel(|c| ChannelShape::new(c.transport, RANKS, Slots::BySender(1)).parts(c.parts))]
    #[len(|_| ROW)]
    rows: Channel<f32>,
    epoch: EpochWord,
}

/// Blocks that put a part of a row each.
const PUTTING: u32 = 4;

#[kernel]
fn put_together(_: &Together, a: &TogetherArgs) {
    let rows = a.rows.open(a.epoch.begin());
    role("send", PUTTING, |b| {
        let at = b.index() * (ROW / PUTTING);
        let row = rows.to(Peers::all()).slot(0);
        row.put(at, a.x.load(at, ROW / PUTTING));
        row.done();
    });
    role("receive", 1, |b| {
        for from in b.strided(RANKS) {
            a.out.store(from * ROW, rows.from(from).slot(0).load(0, ROW));
        }
    });
    rows.credits();
}

#[test]
fn several_blocks_put_a_message_together() {
    let all = [Transport::Flags, Transport::Bulk, Transport::Packets, Transport::Ll];
    for transport in all {
        let kernel = traced(&Together { transport, parts: PUTTING }, put_together);
        let outcome = explored(&launched(kernel, 5)).unwrap_or_else(|e| panic!("{transport:?}: {e}"));
        let want: Vec<f32> = (0..RANKS).flat_map(|r| (0..ROW).map(move |i| (r * 100 + i) as f32)).collect();
        (0..RANKS).for_each(|rank| assert_eq!(outcome.memory.read::<f32>(rank, "out").unwrap(), want));
    }
}

#[test]
fn parts_that_are_counted_wrongly_are_found() {
    let found = |parts| {
        let kernel = traced(&Together { transport: Transport::Flags, parts }, put_together);
        explored(&launched(kernel, 5)).unwrap_err().list[0].kind
    };
    assert_eq!(found(PUTTING + 1), FindingKind::Deadlock);
    let early = [FindingKind::DataRace, FindingKind::UninitializedRead, FindingKind::EpochConfusion];
    assert!(early.contains(&found(PUTTING - 1)));
    // Without parts, a flag is signalled by each block.
    assert_eq!(found(1), FindingKind::DoubledSignal);
}
