//! Kernels that the printer's tests emit, written in the DSL.

pub mod alike;
pub mod apart;
pub mod broadcast;
pub mod census;
pub mod difference;
pub mod digest;
pub mod fp8;
pub mod freight;
pub mod functions;
pub mod gather;
pub mod groups;
pub mod histogram;
pub mod looks;
pub mod mail;
pub mod norms;
pub mod parts;
pub mod post;
pub mod products;
pub mod pull;
pub mod relay;
pub mod signals;
pub mod switch;
pub mod tails;
pub mod wraps;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, F8, TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{Kernel, Verified, verify};
use peerwarp_codegen::print::{EmitInfo, EmitOptions, FarEngine, PrintError, Source, emit_with};

/// A kernel and the name it is known by in tests.
pub type Fixture = (&'static str, fn(u32) -> Kernel);

/// Every kernel here.
pub const ALL: &[Fixture] = &[
    ("token_copy", token_copy),
    ("row_stats", row_stats),
    ("compact", compact),
    ("quantise", quantise),
    ("control", control),
    ("arms", arms),
    ("teams", teams),
    ("mail", mail::mail),
    ("credit", signals::credit),
    ("meeting", signals::meeting),
    ("hand_over", signals::hand_over),
    ("requests", signals::requests),
    ("pages", signals::pages),
    ("census", census::census),
    ("freight", freight::freight),
    ("alike", alike::alike),
    ("functions", functions::functions),
    ("gather", gather::gather),
    ("histogram", histogram::histogram),
    ("broadcast", broadcast::broadcast),
    ("tails", tails::tails),
    ("tails_of_vectors", tails::tails_of_vectors),
    ("pull", pull::pull),
    ("products", products::products),
    ("groups", groups::groups),
    ("norms", norms::norms),
    ("parts", parts::parts),
    ("post", post::post),
    ("relay", |warp_size| relay::relay(warp_size, EpochWord::begin)),
    ("relay_in_anothers_epoch", |warp_size| relay::relay(warp_size, EpochWord::peek)),
];

/// Emits a fixture for a target.
pub fn emitted(make: fn(u32) -> Kernel, target: &str) -> Result<Source, PrintError> {
    emitted_with(make, target, &EmitOptions::default())
}

/// The same with options.
pub fn emitted_with(
    make: fn(u32) -> Kernel,
    target: &str,
    options: &EmitOptions,
) -> Result<Source, PrintError> {
    let (kernel, target, info) = asked(make, target);
    emit_with(&kernel, target, &info, options)
}

/// What a fixture is emitted from.
pub fn asked(make: fn(u32) -> Kernel, target: &str) -> (Verified, Target, EmitInfo) {
    let target: Target = target.parse().expect("tests name targets that exist");
    let kernel = verify(make(target.warp_size())).unwrap_or_else(|e| panic!("{e}"));
    let info = EmitInfo { command: format!("peerwarp show {} --target {target}", kernel.variant) };
    (kernel, target, info)
}

/// Options of sources that record a timeline.
pub const TIMED: EmitOptions = EmitOptions { timeline: Some(256), lines: true, far: FarEngine::Ring };

#[track_caller]
fn traced(name: &str, doc: &str, warp_size: u32, warps: u32, body: impl FnOnce(&mut Binder)) -> Kernel {
    let mut meta = TraceMeta::new(name, 4, warp_size, warps);
    meta.doc = doc.into();
    meta.config = vec![("hidden".into(), "2880".into()), ("ranks".into(), "4".into())];
    trace(meta, body).unwrap_or_else(|e| panic!("{e}"))
}

/// Rows to the ranks in a mask, with a flag a row; the receivers wait for their rows and copy them out.
fn token_copy(warp_size: u32) -> Kernel {
    const WORDS: u32 = 1440;
    const TOKENS: u32 = 16;
    let doc = "Sends each token's row to the ranks that own one of its experts; receivers copy what arrives.";
    traced("token_copy", doc, warp_size, 4, |p| {
        let x = p.arg::<Ptr<u32>>("x", (TOKENS * WORDS).into());
        let ids = p.arg::<Ptr<i32>>("ids", (TOKENS * 2).into());
        let n = p.arg::<Ptr<u32>>("n", 1);
        let inbox = p.arg::<Sym<u32>>("inbox", (4 * TOKENS * WORDS).into());
        let counts = p.arg::<Sym<u32>>("counts", 4);
        let row_flag = p.arg::<Flags>("row_flag", (4 * TOKENS).into());
        let count_flag = p.arg::<Flags>("count_flag", 4);
        let word = p.arg::<EpochWord>("epoch", 1);
        let out = p.arg::<Ptr<u32>>("out", (4 * TOKENS * WORDS).into());
        let epoch = word.begin();
        role("send", 2, |b| send_rows(b, x, ids, n, inbox, counts, row_flag, count_flag, epoch));
        role("recv", 4, |b| receive_rows(b, inbox, counts, row_flag, count_flag, out, epoch));
    })
}

#[kernel]
#[allow(clippy::too_many_arguments)]
fn send_rows(
    b: Group,
    x: Ptr<u32>,
    ids: Ptr<i32>,
    n: Ptr<u32>,
    inbox: Sym<u32>,
    counts: Sym<u32>,
    row_flag: Flags,
    count_flag: Flags,
    epoch: Epoch,
) {
    let n = n.get(0);
    if b.index() == 0 {
        let mut note = send_to(Peers::all());
        note.put_value(&counts, rank(), n);
        note.signal(&count_flag, rank(), epoch);
    }
    b.split(1, |g| {
        for t in g.strided(n) {
            let mut mask = var(0u64);
            for k in 0..2 {
                let id = ids.get(t * 2 + k);
                if id >= 0 {
                    mask |= bit(id.to_u32() / 8);
                }
            }
            let mut row = send_to(Peers::mask(mask));
            let words = x.load(t * 1440, 1440);
            row.put(&inbox, (rank() * 16 + t) * 1440, words);
            row.signal(&row_flag, rank() * 16 + t, epoch);
        }
    });
}

#[kernel]
fn receive_rows(
    b: Group,
    inbox: Sym<u32>,
    counts: Sym<u32>,
    row_flag: Flags,
    count_flag: Flags,
    out: Ptr<u32>,
    epoch: Epoch,
) {
    let told = count_flag.wait_all(0, 4, 1, epoch);
    let base = shared::<u32>("base", 4);
    let mut total = var(0u32);
    for source in 0..4 {
        base.set(source, &total);
        total += counts.get(&told, source);
    }
    b.split(1, |g| {
        for source in 0..4 {
            let first = base.get(source);
            let count = counts.get(&told, source);
            for t in g.strided(count) {
                let got = row_flag.from(source).wait(source * 16 + t, epoch);
                out.store((first + t) * 1440, inbox.load(&got, (source * 16 + t) * 1440, 1440));
            }
        }
    });
}

/// Sums and extrema of bf16 rows, accumulation in a tile variable, and a loop over the rows of a block.
fn row_stats(warp_size: u32) -> Kernel {
    traced("row_stats", "Mean of four rows, its sum and its largest magnitude.", warp_size, 8, |p| {
        let x = p.arg::<Ptr<half::bf16>>("x", 64 * 2880);
        let w = p.arg::<Ptr<f32>>("w", 64);
        let mean = p.arg::<Ptr<half::f16>>("mean", 16 * 2880);
        let sums = p.arg::<Ptr<f32>>("sums", 16);
        let peaks = p.arg::<Ptr<f32>>("peaks", 16);
        let scale = p.arg::<Val<f32>>("scale", 1);
        role("reduce", 3, |b| weighted_mean(b, x, w, mean, sums, peaks, scale));
    })
}

#[kernel]
fn weighted_mean(
    b: Group,
    x: Ptr<half::bf16>,
    w: Ptr<f32>,
    mean: Ptr<half::f16>,
    sums: Ptr<f32>,
    peaks: Ptr<f32>,
    scale: Val<f32>,
) {
    for row in b.strided(16) {
        let mut acc = var(splat(0.0f32, 2880));
        for k in 0..4 {
            let weight = w.get(row * 4 + k);
            let part = x.load((row * 4 + k) * 2880, 2880).cast::<f32>();
            acc = part.fma(weight, &acc);
        }
        let scaled = acc.get() * scale;
        mean.store(row * 2880, scaled.cast::<half::f16>());
        let sum = scaled.sum();
        sums.set(row, sum);
        let peak = scaled.abs().max();
        peaks.set(row, peak);
    }
}

/// Masks, prefix sums, gathers, scatters, shared arrays and atomics.
fn compact(warp_size: u32) -> Kernel {
    traced("compact", "Packs the positive elements, and counts them.", warp_size, 4, |p| {
        let x = p.arg::<Ptr<i32>>("x", 4096);
        let packed = p.arg::<Ptr<i32>>("packed", 4096);
        let place = p.arg::<Ptr<u32>>("place", 4096);
        let total = p.arg::<Ptr<u32>>("total", 1);
        role("pack", 4, |b| pack_positive(b, x, packed, place, total));
    })
}

#[kernel]
fn pack_positive(b: Group, x: Ptr<i32>, packed: Ptr<i32>, place: Ptr<u32>, total: Ptr<u32>) {
    let heap = shared::<i32>("heap", 1000);
    let start = b.index() * 1000;
    let inside = arange(1000).lt(1000 - b.index());
    let values = x.load_where(start, inside, 0);
    let keep = values.gt(0);
    let offsets = keep.select(1u32, 0u32).scan_sum(true);
    let count = keep.select(1u32, 0u32).sum();
    let first = total.atomic_add(0, count);
    heap.scatter(offsets, values, keep);
    let filled = arange(1000).lt(count);
    let ordered = heap.gather(arange(1000), filled, 0);
    packed.store_where(first, ordered, filled);
    place.store(start, offsets + first);
}

/// fp8 with a scale for each 128 elements, put to the next rank.
fn quantise(warp_size: u32) -> Kernel {
    traced("quantise", "Quantises rows to fp8 and passes them on.", warp_size, 4, |p| {
        let x = p.arg::<Ptr<half::bf16>>("x", 8 * 256);
        let inbox = p.arg::<Sym<F8>>("inbox", 8 * 256);
        let scales = p.arg::<Sym<f32>>("scales", 8 * 2);
        let flag = p.arg::<Flags>("flag", 8);
        let out = p.arg::<Ptr<half::bf16>>("out", 8 * 256);
        let word = p.arg::<EpochWord>("epoch", 1);
        let epoch = word.begin();
        role("send", 2, |b| quantise_rows(b, x, inbox, scales, flag, epoch));
        role("recv", 2, |b| restore_rows(b, inbox, scales, flag, out, epoch));
    })
}

#[kernel]
fn quantise_rows(b: Group, x: Ptr<half::bf16>, inbox: Sym<F8>, scales: Sym<f32>, flag: Flags, epoch: Epoch) {
    let next = (rank() + 1) % 4;
    b.split(1, |g| {
        for row in g.strided(8) {
            let mut parcel = send_to(Peers::rank(next));
            for c in 0..2 {
                let v = x.load(row * 256 + c * 128, 128).cast::<f32>();
                let peak = v.abs().max();
                let scale = (peak / 448.0).max(1e-10);
                parcel.put(&inbox, row * 256 + c * 128, (v / scale).cast::<F8>());
                parcel.put_value(&scales, row * 2 + c, scale);
            }
            parcel.signal(&flag, row, epoch);
        }
    });
}

#[kernel]
fn restore_rows(b: Group, inbox: Sym<F8>, scales: Sym<f32>, flag: Flags, out: Ptr<half::bf16>, epoch: Epoch) {
    let previous = (rank() + 3) % 4;
    for row in b.strided(8) {
        let got = flag.from(previous).wait(row, epoch);
        for c in 0..2 {
            let scale = scales.get(&got, row * 2 + c);
            let v = inbox.load(&got, row * 256 + c * 128, 128).cast::<f32>() * scale;
            out.store(row * 256 + c * 128, v.cast::<half::bf16>());
        }
    }
}

/// Loops in loops, exits from both, conditions with effects.
fn control(warp_size: u32) -> Kernel {
    traced("control", "", warp_size, 2, |p| {
        let x = p.arg::<Ptr<u32>>("x", 256);
        let y = p.arg::<Ptr<u32>>("y", 256);
        role("main", 2, |b| search(b, x, y));
    })
}

#[kernel]
fn search(b: Group, x: Ptr<u32>, y: Ptr<u32>) {
    let n = x.get(b.index());
    let mut best = var(0u32);
    'rows: for i in 0..n {
        let v = x.get(i);
        let mut left = var(v);
        while left > 0 && x.get(&left) != 7 {
            left >>= 1;
            if left == 9 {
                continue 'rows;
            }
            if left == best {
                break 'rows;
            }
        }
        let gain = if left > v / 2 { left - v / 2 } else { v };
        if gain > best {
            best = gain;
        }
    }
    while best > 100 {
        best -= 100;
    }
    y.set(b.index(), best);
}

/// Arms that yield tiles and scalars, signed arithmetic, 64-bit indices and bit tricks.
fn arms(warp_size: u32) -> Kernel {
    traced("arms", "", warp_size, 4, |p| {
        let x = p.arg::<Ptr<f32>>("x", 1 << 33);
        let y = p.arg::<Ptr<f32>>("y", 1 << 33);
        let k = p.arg::<Ptr<i32>>("k", 512);
        let bits = p.arg::<Ptr<u64>>("bits", 64);
        role("main", 2, |b| choose_rows(b, x, y, k, bits));
    })
}

#[kernel]
fn choose_rows(b: Group, x: Ptr<f32>, y: Ptr<f32>, k: Ptr<i32>, bits: Ptr<u64>) {
    let row = b.index();
    let at = row.to_u64() * (1u64 << 32);
    let shift = k.get(row) - 3;
    let (tile, note) =
        if shift > 0 { (x.load(at + 4, 1000), shift.abs() * 2) } else { (splat(1.0f32, 1000), -shift) };
    let near = tile.sqrt().exp();
    y.store(at, near * 2.0 + tile);
    k.set(row + 128, note);
    let word = bits.get(row);
    bits.set(row + 2, word & (word - 1));
    bits.set(row + 4, word.popcount().to_u64() << 3);
    k.set(row + 130, word.trailing_zeros().to_i32());
    let mut seen = var(splat(0u32, 300));
    for i in 0..word.to_u32() {
        let ones = arange(300).bitcast::<i32>().minimum(i.to_i32()).cast::<u32>();
        seen += ones;
    }
    k.store(0, seen.get().cast::<i32>().maximum(-1));
}

/// Groups of two warps, waits inside them, and tiles handed over in shared memory.
fn teams(warp_size: u32) -> Kernel {
    traced("teams", "Pairs of warps pass tiles on.", warp_size, 4, |p| {
        let x = p.arg::<Ptr<f32>>("x", 4096);
        let inbox = p.arg::<Sym<f32>>("inbox", 4096);
        let flag = p.arg::<Flags>("flag", 16);
        let out = p.arg::<Ptr<f32>>("out", 4096);
        let word = p.arg::<EpochWord>("epoch", 1);
        let epoch = word.begin();
        role("pass", 2, |b| pass_on(b, x, inbox, flag, out, epoch));
    })
}

#[kernel]
fn pass_on(b: Group, x: Ptr<f32>, inbox: Sym<f32>, flag: Flags, out: Ptr<f32>, epoch: Epoch) {
    let row = shared::<f32>("row", 512);
    row.store(0, x.load(b.index() * 512, 512));
    b.split(2, |g| {
        let scratch = shared::<f32>("scratch", 128);
        let part = row.load(g.in_block() * 128, 128);
        scratch.store(0, part);
        let turned = scratch.gather(127 - arange(128), splat(true, 128), 0.0);
        let total = turned.sum();
        let mut parcel = send_to(Peers::rank((rank() + 1) % 4));
        parcel.put(&inbox, g.index() * 128, turned * total);
        parcel.signal(&flag, g.index(), epoch);
        let got = flag.from((rank() + 3) % 4).wait(g.index(), epoch);
        out.store(g.index() * 128, inbox.load(&got, g.index() * 128, 128));
    });
}
