//! A small kernel as an author writes it, with everything in it: a config, parameters, two roles, groups, device and
//! host control flow, variables, tiles, a parcel with its signal, waits and receipts.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceError, TraceMeta, trace_args};
use peerwarp_codegen::ir::{Const, Kernel, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

/// How tokens are exchanged.
struct Exchange {
    ranks: u32,
    tokens: u32,
    words: u32,
    chunk: u32,
    topk: u32,
    sends: bool,
    receives: bool,
}

impl Exchange {
    /// Start and length of each chunk of a row.
    fn chunks(&self) -> impl Iterator<Item = (u32, u32)> {
        let (words, chunk) = (self.words, self.chunk);
        (0..words).step_by(chunk as usize).map(move |start| (start, chunk.min(words - start)))
    }
}

#[derive(KernelArgs)]
#[args(config = Exchange)]
struct ExchangeArgs {
    /// Rows to send.
    #[len(|c| u64::from(c.tokens * c.words))]
    x: Ptr<u32>,
    /// Owners of each token, -1 for none.
    #[len(|c| u64::from(c.tokens * c.topk))]
    ids: Ptr<i32>,
    /// How many tokens there are.
    n: Ptr<u32>,
    /// Weight of each source.
    #[len(|c| u64::from(c.ranks))]
    weights: Ptr<f32>,
    /// Rows that arrive, by source and token.
    #[len(|c| u64::from(c.ranks * c.tokens * c.words))]
    inbox: Sym<u32>,
    /// How many tokens each source has.
    #[len(|c| u64::from(c.ranks))]
    count: Sym<u32>,
    /// The ranks that each token of each source goes to.
    #[len(|c| u64::from(c.ranks * c.tokens))]
    owners: Sym<u64>,
    #[len(|c| u64::from(c.ranks * c.tokens))]
    row_flag: Flags,
    #[len(|c| u64::from(c.ranks))]
    count_flag: Flags,
    epoch: EpochWord,
    /// Weighted sums of the rows of all sources, by token.
    #[len(|c| u64::from(c.tokens * c.words))]
    out: Ptr<f32>,
    scale: Val<f32>,
}

/// The ranks that a token goes to, a bit each.
#[kernel]
fn owners_of(c: &Exchange, a: &ExchangeArgs, token: Val<u32>) -> Val<u64> {
    let mut owners = var(0u64);
    for k in 0..c.topk {
        let id = a.ids.get(token * c.topk + k);
        if id >= 0 {
            owners |= bit(id.to_u32());
        }
    }
    owners.get()
}

/// Sends each token to its owners, and adds up what arrives.
#[kernel]
fn exchange(c: &Exchange, a: &ExchangeArgs) {
    let epoch = if c.receives { a.epoch.begin() } else { a.epoch.peek() };
    if c.sends {
        role("send", 2, |b| {
            let n = a.n.get(0);
            if b.index() == 0 {
                let mut counts = send_to(Peers::all());
                counts.put_value(&a.count, rank(), n);
                for t in 0..n {
                    counts.put_value(&a.owners, rank() * c.tokens + t, owners_of(c, a, t));
                }
                counts.signal(&a.count_flag, rank(), epoch);
            }
            b.split(2, |g| {
                for t in g.strided(n) {
                    let slot = rank() * c.tokens + t;
                    let mut row = send_to(Peers::mask(owners_of(c, a, t)));
                    for (start, len) in c.chunks() {
                        row.put(&a.inbox, slot * c.words + start, a.x.load(t * c.words + start, len));
                    }
                    row.signal(&a.row_flag, slot, epoch);
                }
            });
        });
    }
    if c.receives {
        role("recv", 4, |b| {
            let all = a.count_flag.wait_all(0, c.ranks, 1, epoch);
            let weights = shared::<f32>("weights", c.ranks);
            weights.store(0, a.weights.load(0, c.ranks) * a.scale);
            for t in b.strided(c.tokens) {
                let mut acc = var(splat(0.0, c.words));
                for src in 0..c.ranks {
                    let slot = src * c.tokens + t;
                    if t < a.count.get(&all, src) && a.owners.get(&all, slot) & bit(rank()) != 0 {
                        let got = a.row_flag.from(src).wait(slot, epoch);
                        let row = a.inbox.load(&got, slot * c.words, c.words).bitcast::<f32>();
                        acc = row.fma(weights.get(src), acc);
                    }
                }
                // Halve until nothing is above 1000, at most ten times.
                let mut rounds = var(0u32);
                while acc.get().abs().max() > 1000.0 {
                    rounds += 1;
                    if rounds > 10 {
                        break;
                    }
                    acc = acc * 0.5;
                }
                a.out.store(t * c.words, acc);
            }
        });
    }
}

fn traced(sends: bool, receives: bool) -> Kernel {
    let config = Exchange { ranks: 4, tokens: 16, words: 40, chunk: 32, topk: 2, sends, receives };
    let kernel = trace_args::<ExchangeArgs>(TraceMeta::new("exchange", 4, 32, 4), &config, exchange);
    let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
    verify(kernel.clone()).unwrap_or_else(|e| panic!("{e:?}\n{kernel}"));
    kernel
}

#[test]
fn a_kernel_with_everything() {
    let text = traced(true, true).to_string();
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(text) });
}

#[test]
fn a_config_takes_one_half_of_it() {
    let roles = |k: &Kernel| k.roles.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
    let (send, receive) = (traced(true, false), traced(false, true));
    assert_eq!(roles(&send), ["send"]);
    assert_eq!(roles(&receive), ["recv"]);
    assert!(!send.to_string().contains("advance"), "only the second half advances the epoch");
    assert!(receive.to_string().contains("epoch @epoch, advance"));
}

/// What `exchange` computes for a rank, from every rank's tokens.
fn reference(c: &Exchange, rank: u32, sources: &[Tokens], scale: f32) -> Vec<f32> {
    let words = c.words as usize;
    let mut out = vec![0.0f32; (c.tokens * c.words) as usize];
    for (t, row) in out.chunks_mut(words).enumerate() {
        for (src, from) in sources.iter().enumerate().filter(|(_, from)| t < from.n) {
            if from.ids[t * 2..t * 2 + 2].contains(&(rank as i32)) {
                let weight = sources[rank as usize].weights[src] * scale;
                let x = &from.x[t * words..(t + 1) * words];
                row.iter_mut().zip(x).for_each(|(acc, x)| *acc = x.mul_add(weight, *acc));
            }
        }
        for _ in 0..10 {
            if row.iter().all(|v| v.abs() <= 1000.0) {
                break;
            }
            row.iter_mut().for_each(|v| *v *= 0.5);
        }
    }
    out
}

/// One rank's input.
struct Tokens {
    n: usize,
    x: Vec<f32>,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Tokens {
    /// Some that reach every case: a rank without tokens, ids of no expert, tokens for no rank and for all ranks, sums that
    /// must be halved, and more often than ten times.
    fn of(c: &Exchange, rank: u32) -> Tokens {
        let some = |i: u32| i.wrapping_mul(2_654_435_761).rotate_left(9) ^ (rank * 40_503);
        let entries = 0..c.tokens * c.topk;
        Tokens {
            n: [0, 16, 5, 1][rank as usize],
            x: (0..c.tokens * c.words).map(|i| (some(i) % 4001) as f32 - 2000.0).collect(),
            ids: entries.map(|i| (some(i) % (c.ranks + 1)) as i32 - 1).collect(),
            weights: (0..c.ranks).map(|i| [0.25, 1.0, 3.5, 4e6][(i + rank) as usize % 4]).collect(),
        }
    }
}

#[test]
fn the_kernel_computes_what_it_says() {
    let config =
        Exchange { ranks: 4, tokens: 16, words: 40, chunk: 32, topk: 2, sends: true, receives: true };
    let kernel = Arc::new(Compiled::new(verify(traced(true, true)).unwrap()));
    let inputs: Vec<Tokens> = (0..4).map(|rank| Tokens::of(&config, rank)).collect();
    let mut machine = Machine::new(4);
    machine.buffers_of(kernel.kernel()).unwrap();
    for (rank, tokens) in (0..).zip(&inputs) {
        machine.write(rank, "x", 0, &tokens.x).unwrap();
        machine.write(rank, "ids", 0, &tokens.ids).unwrap();
        machine.write(rank, "n", 0, &[tokens.n as u32]).unwrap();
        machine.write(rank, "weights", 0, &tokens.weights).unwrap();
    }
    let scale = Bindings::new().scalar("scale", Const::F32(0.75f32.to_bits()));
    machine.launch_all(&kernel, &scale).unwrap();
    for seed in 0..8 {
        let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
        for rank in 0..4 {
            let expected = reference(&config, rank, &inputs, 0.75);
            assert_eq!(outcome.memory.read::<f32>(rank, "out").unwrap(), expected, "rank {rank}");
        }
    }
}

#[derive(KernelArgs)]
#[args(config = bool)]
struct SometimesArgs {
    x: Ptr<u32>,
    #[len(|scaled| if *scaled { 4 } else { 0 })]
    scale: Option<Ptr<u32>>,
    y: Ptr<u32>,
}

#[test]
fn optional_parameters_are_there_when_they_have_a_length() {
    for scaled in [true, false] {
        let kernel = trace_args::<SometimesArgs>(TraceMeta::new("test", 2, 32, 1), &scaled, |scaled, a| {
            assert_eq!(a.scale.is_some(), *scaled);
            role("r", 1, |_| a.y.set(0, a.scale.map_or(a.x.get(0), |s| s.get(3) * a.x.get(0))));
        });
        let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
        let names: Vec<&str> = kernel.params.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, if scaled { vec!["x", "scale", "y"] } else { vec!["x", "y"] });
    }
}

/// Elements, and the most rows that a launch has of them.
struct Lent(u64, u32);

#[derive(KernelArgs)]
#[args(config = Lent)]
struct LentArgs {
    #[input]
    #[len(|c| c.0)]
    #[rows(n, |c| c.1)]
    x: Ptr<u32>,
    n: Val<u32>,
    y: Ptr<u32>,
}

#[test]
fn the_most_rows_divide_the_length() {
    let traced = |len, most| {
        let meta = TraceMeta::new("test", 2, 32, 1);
        trace_args::<LentArgs>(meta, &Lent(len, most), |_, a| role("r", 1, |_| a.y.set(0, a.x.get(0) + a.n)))
    };
    traced(64, 8).unwrap_or_else(|e| panic!("{e}"));
    for (most, message) in
        [(7, "`x` has 64 elements in at most 7 rows"), (0, "`x` has 64 elements in at most 0 rows")]
    {
        let error = traced(64, most).unwrap_err();
        assert_eq!(error.message, message);
    }
}

/// Rows of so many elements.
struct Width(u64);

#[derive(KernelArgs)]
#[args(config = Width)]
struct Row {
    #[len(|w| w.0)]
    row: Ptr<u32>,
    #[len(|w| w.0 - 4)]
    rest: Option<Ptr<u32>>,
}

impl Row {
    /// A function of the device for every kernel that has the group.
    fn last(&self, c: &Width) -> Val<u32> {
        self.rest.as_ref().map_or(self.row.get(3), |rest| rest.get((c.0 - 5) as u32))
    }
}

#[derive(KernelArgs)]
#[args(config = Width)]
struct SameConfig {
    #[group]
    row: Row,
    y: Ptr<u32>,
}

#[derive(KernelArgs)]
#[args(config = u64)]
struct OtherConfig {
    x: Ptr<u32>,
    #[group(|n| Width(4 * n))]
    row: Row,
    y: Ptr<u32>,
}

#[test]
fn groups_of_parameters_stand_where_their_field_does() {
    let meta = || TraceMeta::new("test", 2, 32, 1);
    let params = |kernel: Result<Kernel, _>| -> Vec<(String, u64)> {
        let kernel: Kernel = kernel.unwrap_or_else(|e: TraceError| panic!("{e}"));
        kernel.params.iter().map(|p| (p.name.clone(), p.len)).collect()
    };
    let same = trace_args::<SameConfig>(meta(), &Width(4), |c, a| {
        role("r", 1, |_| a.y.set(0, a.row.last(c)));
    });
    assert_eq!(params(same), [("row".into(), 4), ("y".into(), 1)]);
    let other = trace_args::<OtherConfig>(meta(), &2, |n, a| {
        role("r", 1, |_| a.y.set(0, a.row.last(&Width(4 * n)) + a.x.get(0)));
    });
    assert_eq!(params(other), [("x".into(), 1), ("row".into(), 8), ("rest".into(), 4), ("y".into(), 1)]);
}
