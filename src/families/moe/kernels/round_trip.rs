//! A round trip in one launch: every token to the ranks that own its experts, through an elementwise expert there, and back.

use peerwarp_codegen::dsl::prelude::*;

use super::combine::ReturnArgs;
use super::deliver::{Hooked, RowHook, stand_in_expert};
use super::device::{at, local_experts, missing, owners};
use super::dispatch::{TokenArgs, TokenLaunch, rows_there, tokens};
use super::ids::{Ids, count_entries};
use super::returned::Back;
use super::roles::go_on;
use super::round_trip_config::RoundTrip;
use super::route::NOWHERE;
use super::send::Sender;
use super::sums::{Dequantiser, returned, sum_of_owners};
use super::wire::{InboxArgs, ReadyArgs, Received, await_ready, notify_ready};

/// Parameters of [`round_trip`].
#[derive(KernelArgs)]
#[args(config = RoundTrip)]
pub struct RoundTripArgs {
    /// What is sent.
    #[group(|c| c.dispatch())]
    #[input]
    pub tokens: TokenArgs,

    /// Counts of each expert's entries, to which those of this rank's tokens are added, wherever the table places the expert. The caller
    /// sets them back.
    #[inout]
    #[len(|c| if c.expert_load { u64::from(c.experts) } else { 0 })]
    pub expert_load: Option<Ptr<u32>>,
    /// Out: the combined rows, `[token][hidden]`.
    #[output]
    #[len(|c| u64::from(c.tokens) * u64::from(c.hidden))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.dtype.combined())]
    pub out: AnyPtr,
    /// Out, if the variant is `missing`: how many of each token's entries name experts of ranks that are not active. The token's row
    /// is the sum of the others. Experts that the table places in no slot count too.
    #[len(|c| if c.missing { u64::from(c.tokens) } else { 0 })]
    pub missing: Option<Ptr<u32>>,

    /// Where rows arrive.
    #[group(|c| c.dispatch())]
    pub inbox: InboxArgs,
    /// Expert of each entry, and the bits of its weight, `[parity][source][entry][2]`.
    #[len(|c| 4 * u64::from(c.ranks * c.sent_entries()))]
    pub entries: Ll<u32>,
    /// Where rows come back.
    #[group(|c| c.combine())]
    pub back: ReturnArgs,
    /// Which ranks are ready for the next packets.
    #[group(|c| c.dispatch())]
    pub ready: ReadyArgs,
    /// Counts round trips.
    pub epoch: EpochWord,
}

/// Brings every token to the ranks that own its experts, runs the experts there on the row as it arrives, and brings the
/// weighted sums of their outputs back: what dispatch with a hook and combine yield, bit for bit, in one launch and without
/// rows by expert in between.
///
/// Every rank launches it in turn, ranks without tokens too, with n = 0. A token whose ids are all masked gets zeros.
/// All ranks use the same variant.
#[kernel]
pub fn round_trip(c: &RoundTrip, a: &RoundTripArgs) {
    round_trip_with(c, a, &stand_in_expert);
}

/// [`round_trip`] with a hook of one's own, for configurations whose [`Hook`](super::Hook) is [`Hook::Custom`](super::Hook::Custom).
#[kernel]
pub fn round_trip_with(c: &RoundTrip, a: &RoundTripArgs, hook: RowHook<'_>) {
    let epoch = a.epoch.begin();
    let out = c.dispatch();
    role("route", c.route_blocks(), |b| b.split(1, |g| tell(c, a, g, epoch)));
    role("send", c.send_blocks, |b| {
        let sender = Sender { c: &out, a: &a.tokens, inbox: &a.inbox, epoch };
        b.split(c.group_warps, |g| sender.send(g));
        go_on(&b, c.after_send());
    });
    role("expert", c.expert_blocks, |b| b.split(c.group_warps, |g| answer(c, a, g, epoch, hook)));
    role("recv", c.recv_blocks, |b| b.split(c.group_warps, |g| receive(c, a, g, epoch)));
    role("ready", out.ready_blocks(), |_| {
        notify_ready(&a.ready, c.ranks, epoch);
        await_ready(&a.ready.ready.expect("packets order nothing"), c.ranks, epoch);
    });
}

/// Tells every rank where each entry goes and what it weighs: those of tokens that are not there go nowhere. A group has some
/// entries and a rank, so that no rank waits for what others are told.
#[kernel]
fn tell(c: &RoundTrip, a: &RoundTripArgs, g: Group, epoch: Epoch) {
    let (len, out) = (c.told(), c.dispatch());
    let ids = Ids::given(&out, &a.tokens);
    let n = tokens(&out, &a.tokens);
    let i = arange(2 * len);
    for part in g.strided(c.chunks() * c.ranks) {
        let to = (part + rank()) % c.ranks;
        let first = part / c.ranks * len;
        let entry = i / 2 + first;
        // What `n` leaves out is loaded too, as far as there are rows: so it is on its way together with it.
        let there = entry < rows_there(&out, &a.tokens) * c.topk;
        let expert = ids.named(ids.gather(entry, there));
        let weight = a.tokens.weights.gather(entry, there, 0.0);
        let (named, slot) = (expert, ids.placed(expert, || entry));
        let valid = (entry < n * c.topk) & (slot < out.map().experts);
        // Zeros, which come from ranks that are not active, are entries that go nowhere.
        let expert = valid.select(!slot, !NOWHERE);
        let weight = valid.select(weight, 0.0).bitcast::<u32>();
        let words = (i % 2 == 0).select(expert, weight);
        a.entries.send(Peers::rank(to), (bank(c, rank(), epoch) + first) * 2, words, epoch);
        if let Some(counts) = a.expert_load {
            // An entry has two words: its expert and its weight.
            let counted = (i % 2 == 0) & (entry < n * c.topk) & (named < c.experts);
            if to == rank() {
                count_entries(counts, named, counted);
            }
        }
    }
}

/// The first of a rank's entries.
fn bank(c: &RoundTrip, source: Val<u32>, epoch: Epoch) -> Val<u32> {
    (epoch.parity() * c.ranks + source) * c.sent_entries()
}

/// Runs the experts on every row that arrives, and sends the sum of what they make of it back.
#[kernel]
fn answer(c: &RoundTrip, a: &RoundTripArgs, g: Group, epoch: Epoch, hook: RowHook<'_>) {
    let out = c.dispatch();
    let pieces = out.pieces();
    let entries = shared::<u32>("entries", 2 * c.topk);
    let word = arange(2 * c.topk);
    let hooked = Hooked::new(&out, hook);
    let coming = c.combine();
    let quantising = coming.quantising(out.moved().bytes() > 1);
    for i in g.strided(c.tokens * c.ranks * pieces.parts()) {
        let (message, part) = pieces.part(i);
        let (source, token) = out.travel().arriving(message);
        let entry = bank(c, source, epoch) + token * c.topk;
        let words = a.entries.load(entry * 2, 2 * c.topk, source, epoch);
        let (_, owned) = local_experts(out.map(), !words);
        let bits = ((word % 2 == 0) & owned).select(splat(1u32, 2 * c.topk) << (word / 2), 0);
        let mine = bits.or_all();
        if mine != 0 {
            entries.store(0, words);
            let received = Received::wait(&a.inbox, source, token, epoch);
            let returns = a.back.returns.open(epoch);
            let back = returns.to(Peers::rank(source)).slot(token);
            let scales = returns.scales.map(|scales| back.field(scales));
            let to = Back { c: &coming, row: back.field(returns.row), scales };
            pieces.each(part, |start, len| {
                let y = hooked.piece(&received, start, len);
                let y = AnyTile::rounded(y, c.dtype.combined()).to_f32();
                let sum = weighted(c, mine, &entries, y, len);
                quantising.put_sum(&to, sum, (start, len));
            });
            back.done();
        }
    }
}

/// What this rank's experts, a bit of `mine` each, add up to if each yields `y`: in the order of k, as combine has it.
#[kernel]
fn weighted(c: &RoundTrip, mine: Val<u32>, entries: &Shared<u32>, y: Tile<f32>, len: u32) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    for k in 0..c.topk.val() {
        // Others' weights are loaded too, so that no load waits for a branch.
        let weight = entries.get(k * 2 + 1).bitcast::<f32>();
        let owned = (mine >> k) & 1 != 0;
        sum = owned.select(y.fma(weight, &sum), &sum);
    }
    sum.get()
}

/// Sums what comes back for every token.
#[kernel]
fn receive(c: &RoundTrip, a: &RoundTripArgs, g: Group, epoch: Epoch) {
    let (coming, out) = (c.combine(), c.dispatch());
    let ids = Ids::given(&out, &a.tokens);
    let pieces = coming.summed_pieces();
    let scaling = Dequantiser::new(&coming, coming.owners_in_flight());
    for i in g.strided(tokens(&out, &a.tokens) * pieces.parts()) {
        let (token, part) = pieces.part(i);
        let owners = owners(coming.map(), &ids, token * c.topk, c.topk, g);
        let back = a.back.returns.open(epoch);
        let returned = returned(&coming, back, owners, token);
        pieces.each(part, |start, len| {
            let sum = sum_of_owners((&coming, back, scaling), &returned, None, start, len);
            a.out.store_f32(at(token, c.hidden) + start.to_u64(), sum);
        });
        if let Some(counts) = a.missing {
            if part == 0 {
                counts.set(token, missing(coming.map(), &ids, token * c.topk, c.topk));
            }
        }
    }
}
