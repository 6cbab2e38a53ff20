//! Little's law in `explain`: the bytes that roles keep in flight, what they allow on a device, and the line that limits them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::explain::{Ending, Flight, Way};
use peerwarp_codegen::ir::{Dtype, verify};
use peerwarp_codegen::print;

const RANKS: u32 = 4;
const BLOCKS: u32 = 32;
const TILE: u32 = 1024;
/// Tiles of a block.
const TILES: u32 = 16;

/// The parameters of the kernels here.
#[derive(Clone, Copy)]
struct Given {
    x: Ptr<f32>,
    n: Ptr<u32>,
    hops: Sym<f32>,
    arrived: Flags,
    epoch: Epoch,
}

impl Given {
    fn of(p: &mut Binder) -> Given {
        let slots = u64::from(2 * TILES * BLOCKS);
        Given {
            x: p.arg("x", u64::from(TILES * BLOCKS * TILE)),
            n: p.arg("n", 1),
            hops: p.arg("hops", slots * u64::from(TILE)),
            arrived: p.arg("arrived", slots),
            epoch: p.arg::<EpochWord>("epoch", 1).begin(),
        }
    }

    /// The place of a block's tile.
    fn slot(self, b: Group, tile: Val<u32>) -> Val<u32> {
        (self.epoch.parity() * TILES + tile) * BLOCKS + b.index()
    }
}

#[kernel]
fn next() -> Val<u32> {
    (rank() + 1) % RANKS
}

/// A plainly written ring: each step waits for one tile, adds to it, and passes it on with a signal.
#[kernel]
fn ring(b: Group, g: Given) {
    let mut first = send_to(Peers::rank(next()));
    let slot = g.slot(b, 0u32.val());
    first.put(&g.hops, slot * TILE, g.x.load(b.index() * TILE, TILE));
    first.signal(&g.arrived, slot, g.epoch);
    for step in 1..RANKS.val() {
        let from = g.slot(b, step - 1);
        let got = g.arrived.from((rank() + (RANKS - 1)) % RANKS).wait(from, g.epoch);
        let sum = g.hops.load(&got, from * TILE, TILE) + g.x.load((step * BLOCKS + b.index()) * TILE, TILE);
        let mut parcel = send_to(Peers::rank(next()));
        let slot = g.slot(b, step);
        parcel.put(&g.hops, slot * TILE, sum);
        parcel.signal(&g.arrived, slot, g.epoch);
    }
}

/// As many tiles as `each` with one signal.
#[kernel]
fn bursts(b: Group, g: Given, each: u32) {
    for burst in 0..(TILES / each).val() {
        let mut parcel = send_to(Peers::rank(next()));
        for k in 0..each {
            let tile = burst * each + k;
            parcel.put(&g.hops, g.slot(b, tile) * TILE, g.x.load((tile * BLOCKS + b.index()) * TILE, TILE));
        }
        parcel.signal(&g.arrived, g.slot(b, burst), g.epoch);
    }
}

/// One signal behind a loop that may have any number of rounds, and with `signals` another one in each fourth round.
#[kernel]
fn stream(b: Group, g: Given, signals: bool) {
    let mut parcel = send_to(Peers::rank(next()));
    for tile in 0..g.n.get(0) {
        parcel.put(&g.hops, g.slot(b, tile) * TILE, g.x.load((tile * BLOCKS + b.index()) * TILE, TILE));
        if signals {
            if tile % 4 == 3 {
                g.arrived.signal(Peers::rank(next()), g.slot(b, tile), g.epoch);
            }
        }
    }
    parcel.signal(&g.arrived, g.slot(b, 0u32.val()), g.epoch);
}

/// Warps send tiles of their own to all ranks.
#[kernel]
fn warps(b: Group, g: Given) {
    b.split(1, |w| {
        for tile in w.strided(TILES) {
            let mut parcel = send_to(Peers::all());
            parcel.put(&g.hops, (g.epoch.parity() * TILES + tile) * TILE, g.x.load(tile * TILE, TILE));
            parcel.signal(&g.arrived, g.epoch.parity() * TILES + tile, g.epoch);
        }
    });
}

/// Tiles by packets: an answer for each.
#[kernel]
fn ping(b: Group, mail: Packets<f32>, g: Given) {
    for tile in 0..TILES.val() {
        let at = g.slot(b, tile) * TILE;
        mail.send(Peers::rank(next()), at, arange(TILE).to_f32());
        let sum = mail.take(at, TILE, (rank() + (RANKS - 1)) % RANKS).sum();
        g.x.set(0, sum);
    }
}

/// The description of a role on a target, and its flights.
fn told(target: &str, body: impl FnOnce(&mut Binder)) -> (String, Vec<Flight>) {
    let mut body = Some(body);
    let target = target.parse::<peerwarp_codegen::family::Target>().unwrap();
    let traced = trace(TraceMeta::new("sample", RANKS, target.warp_size(), 4), |p| body.take().unwrap()(p));
    let kernel = verify(traced.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"));
    let told = print::explain(&kernel, target).unwrap_or_else(|e| panic!("{e}"));
    let text = told.to_string();
    let lines = text.lines().filter(|line| line.starts_with("In flight"));
    (lines.collect::<Vec<_>>().join("\n"), told.roles[0].flights.clone())
}

fn role_of(body: impl FnOnce(Group, Given)) -> impl FnOnce(&mut Binder) {
    move |p| {
        let given = Given::of(p);
        role("r", BLOCKS, |b| body(b, given));
    }
}

/// The flight of a way, of which there is one.
#[track_caller]
fn of(way: Way, flights: &[Flight]) -> &Flight {
    flights.iter().find(|flight| flight.way == way).expect("a flight of the way")
}

#[test]
fn a_ring_with_one_tile_in_flight_is_reported_so() {
    let (text, flights) = told("cuda:sm_90a", role_of(ring));
    insta::assert_snapshot!(text);
    let sent = of(Way::Sent, &flights);
    let block = sent.block.as_ref().unwrap();
    assert_eq!((block.tiles, block.bytes, block.ending), (1, 4096, Ending::Signal));
    // 32 blocks with 4 KiB each, 0.8 us.
    assert!((sent.gbps.unwrap() - 163.84).abs() < 1e-9 && sent.path_gbps == Some(360.0), "{sent:?}");
    // Of the signals before and in the loop the latter is named.
    let mut lines = include_str!("flight.rs").lines();
    let line = lines.position(|line| line.contains("parcel.signal(&g.arrived, slot,")).unwrap() + 1;
    assert!(block.line.ends_with(&format!("flight.rs:{line}")), "{block:?}");
}

#[test]
fn more_tiles_before_a_signal_allow_more() {
    for each in [1, 2, 4, 8] {
        let (text, flights) = told("cuda:sm_90a", role_of(move |b, g| bursts(b, g, each)));
        let sent = of(Way::Sent, &flights);
        let block = sent.block.as_ref().unwrap();
        assert_eq!((block.tiles, block.bytes), (each.into(), u64::from(each) * 4096), "{text}");
        assert!((sent.gbps.unwrap() - f64::from(each) * 163.84).abs() < 1e-9, "{sent:?}");
        assert_eq!(text.contains("enough for the 360 GB/s"), each >= 4, "{text}");
        let loaded = of(Way::Loaded, &flights).block.clone().unwrap();
        assert_eq!(loaded.bytes, u64::from(each) * 4096, "{text}");
    }
}

#[test]
fn what_may_stay_in_flight_is_not_bounded() {
    for signals in [false, true] {
        let (text, flights) = told("cuda:sm_90a", role_of(move |b, g| stream(b, g, signals)));
        assert_eq!(of(Way::Sent, &flights).block, None, "{text}");
        assert!(text.contains("In flight, sends: as many as the links take"), "{text}");
        let loaded = of(Way::Loaded, &flights).block.clone().unwrap();
        assert_eq!((loaded.bytes, loaded.ending), (4096, Ending::Round), "{text}");
    }
}

#[test]
fn groups_of_a_block_and_targets_add_up() {
    let (text, flights) = told("cuda:sm_90a", role_of(warps));
    let block = of(Way::Sent, &flights).block.clone().unwrap();
    // Four warps, three other ranks.
    assert_eq!((block.tiles, block.bytes), (4, 4 * 3 * 4096), "{text}");
}

#[test]
fn an_answer_ends_a_flight_of_packets() {
    let (text, flights) = told("cuda:sm_90a", |p| {
        let mail = p.arg::<Packets<f32>>("mail", u64::from(2 * TILES * BLOCKS * TILE));
        let given = Given::of(p);
        role("r", BLOCKS, |b| ping(b, mail, given));
    });
    let block = of(Way::Sent, &flights).block.clone().unwrap();
    assert_eq!((block.bytes, block.ending), (4096, Ending::Wait), "{text}");
}

#[test]
fn more_blocks_than_sms_share_them_and_unknown_latencies_allow_nothing_known() {
    let many = |p: &mut Binder| {
        let given = Given::of(p);
        role("r", 300, |b| bursts(b, given, 1));
    };
    let (text, flights) = told("cuda:sm_90a", many);
    let sent = of(Way::Sent, &flights);
    assert_eq!((sent.sms, sent.device_sms, sent.sm_bytes), (132, 132, 3 * 4096), "{text}");
    let (text, flights) = told("hip:gfx942", role_of(ring));
    let sent = of(Way::Sent, &flights);
    assert_eq!((sent.gbps, sent.path_gbps, sent.device_sms), (None, None, 304));
    assert!(text.contains("limits them") && !text.contains("GB/s"), "{text}");
}

/// CUDA's products bring pieces ahead, HIP's have one under way.
#[test]
fn products_have_as_many_pieces_in_flight_as_are_emitted() {
    let product = |p: &mut Binder| {
        let [x, w, out] = [("x", Dtype::Bf16), ("w", Dtype::Bf16), ("out", Dtype::F32)]
            .map(|(name, dtype)| p.matrix::<AnyMatrix>(name, [64, 256], dtype));
        role("r", 1, |b| out.rows(0, 64).store_f32(0, b.dot(x.rows(0, 64), w.rows(0, 64), 4)));
    };
    for (target, stages) in [("cuda:sm_90a", 4), ("cuda:sm_80", 4), ("hip:gfx942", 1)] {
        let (text, flights) = told(target, product);
        let loaded = of(Way::Loaded, &flights).block.clone().unwrap();
        // 64 rows of 64 columns of each operand.
        assert_eq!(
            (loaded.bytes, loaded.ending),
            (stages * 2 * 64 * 64 * 2, Ending::Stages),
            "{target}: {text}"
        );
    }
}
