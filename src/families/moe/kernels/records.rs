//! Records of dispatch: what a rank tells every rank about a chunk of its tokens, whichever way it travels.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::{first_expert, local_experts, owned_experts};
use super::dispatch::DispatchArgs;
use super::protocol::Protocol;

/// The record of a chunk, as its sender has it.
pub(super) struct Record {
    /// Its number among those of all ranks, in the bank of this launch.
    pub number: Val<u32>,
    /// Tokens of the rank.
    pub n: Val<u32>,
    /// Entries of the chunk for each expert, where the index does not count them.
    pub count: Option<Shared<u32>>,
    /// Expert of each entry, and its rank where they are counted.
    pub words: Tile<u32>,
    /// Weight of each entry, where they travel.
    pub weights: Option<Tile<f32>>,
}

impl Record {
    /// Sends it to ranks; to all of them at once, if it has counts.
    #[kernel]
    pub fn send(self, c: &Dispatch, a: &DispatchArgs, to: Peers, epoch: Epoch) {
        if let (Some(n), Some(route), Some(rec_count), Some(flag)) =
            (a.rec_n, a.rec_route, a.rec_count, a.rec_flag)
        {
            let mut parcel = send_to(to);
            parcel.put(&route, self.number * c.record_entries(), self.words);
            if let Some(count) = self.count {
                parcel.put(&rec_count, self.number * c.experts, count.load(0, c.experts));
            }
            if let (Some(weight), Some(weights)) = (a.rec_weight, self.weights) {
                parcel.put(&weight, self.number * c.record_entries(), weights);
            }
            parcel.put_value(&n, self.number, self.n);
            parcel.signal(&flag, self.number, epoch);
        }
        if let (Some(n), Some(route)) = (a.ll_n, a.ll_route) {
            if let (Some(ll), Some(count)) = (a.ll_count, self.count) {
                // To each rank the counts of its own experts.
                let most = c.map().at_most();
                for to in 0..c.ranks.val() {
                    let expert = arange(most);
                    let mine = expert < owned_experts(c.map(), to);
                    let of_rank = count.gather(expert + first_expert(c.map(), to), mine, 0);
                    ll.send(Peers::rank(to), self.number * most, of_rank, epoch);
                }
            }
            route.send(to, self.number * c.record_entries(), self.words, epoch);
            if let (Some(weight), Some(weights)) = (a.ll_weight, self.weights) {
                weight.send(to, self.number * c.record_entries(), weights, epoch);
            }
            // What receivers poll first goes last: then they hardly poll for the rest.
            n.send(to, self.number, splat(self.n, 1), epoch);
        }
    }
}

/// Flags by which ranks say that they are ready, where records order nothing.
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub struct ReadyArgs {
    /// The source is in this launch, ready for what the next one sends, `[parity][source]`.
    #[len(|c| if c.protocol == Protocol::Packets { 2 * u64::from(c.ranks) } else { 0 })]
    pub ready: Option<Flags>,
}

/// Signals every rank, where records order nothing, that this rank is ready: what it did in earlier launches is over, such as
/// reading their records and emptying their packets. A block of its own does it: the fence delays nobody.
#[kernel]
pub(super) fn notify_ready(a: &ReadyArgs, ranks: u32, epoch: Epoch) {
    if let Some(ready) = a.ready {
        ready.signal(Peers::all(), epoch.parity() * ranks + rank(), epoch);
    }
}

/// Waits until every rank is ready: what is sent after this launch comes after what it did before. Nobody else waits
/// for that.
#[kernel]
pub(super) fn await_ready(ready: &Flags, ranks: u32, epoch: Epoch) {
    let _everybody = ready.wait_all(epoch.parity() * ranks, ranks, 1, epoch);
}

/// The records of all ranks, as a rank receives them.
pub(super) struct Records<'a> {
    c: &'a Dispatch,
    a: &'a DispatchArgs,
    epoch: Epoch,
    /// The first one of this launch.
    bank: Val<u32>,
    /// The receipt of their flags, where they have some.
    arrived: Option<Arrived>,
}

impl<'a> Records<'a> {
    /// Waits for flags, where there are some.
    pub fn receive(c: &'a Dispatch, a: &'a DispatchArgs, epoch: Epoch, bank: Val<u32>) -> Records<'a> {
        let arrived = a.rec_flag.map(|flag| flag.wait_all(bank, c.records(), c.chunks(), epoch));
        Records { c, a, epoch, bank, arrived }
    }

    /// Tokens of the source of each of these records.
    pub fn n(&self, record: Tile<u32>) -> Tile<u32> {
        match (self.a.rec_n, &self.arrived, self.a.ll_n) {
            (Some(n), Some(arrived), _) => n.gather(arrived, record + self.bank, true, 0),
            (_, _, Some(n)) => n.gather(record + self.bank, record / self.c.chunks(), true, self.epoch),
            _ => unreachable!("records come with flags or as LL elements"),
        }
    }

    /// Entries of records for experts of this rank, by their numbers among those.
    #[kernel]
    pub fn count(&self, expert: Tile<u32>, record: Tile<u32>) -> Tile<u32> {
        let (c, number) = (self.c, record + self.bank);
        let owned = expert < owned_experts(c.map(), rank());
        match (self.a.rec_count, &self.arrived, self.a.ll_count) {
            (Some(count), Some(arrived), _) => {
                let first = first_expert(c.map(), rank());
                count.gather(arrived, number * c.experts + first + expert, owned, 0)
            }
            (_, _, Some(count)) => {
                count.gather(number * c.map().at_most() + expert, record / c.chunks(), owned, self.epoch)
            }
            _ => unreachable!("records come with flags or as LL elements"),
        }
    }

    /// The words of `len` entries: `entry` is the first of them in its record, whose number is `record`.
    pub fn words(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Tile<u32> {
        let first = self.first(record, entry);
        match (self.a.rec_route, &self.arrived, self.a.ll_route) {
            (Some(route), Some(arrived), _) => route.load(arrived, first, len),
            (_, _, Some(route)) => route.load(first, len, record / self.c.chunks(), self.epoch),
            _ => unreachable!("records come with flags or as LL elements"),
        }
    }

    /// The words of all entries of all records, where these come without flags.
    pub fn all_words(&self) -> Tile<u32> {
        let (c, route) = (self.c, self.a.ll_route.expect("records come as LL elements"));
        let entry = arange(c.records() * c.record_entries());
        let source = entry / (c.chunks() * c.record_entries());
        route.gather(entry + self.bank * c.record_entries(), source, true, self.epoch)
    }

    /// The experts of `len` entries among those of this rank, and which are this rank's, as [`Records::words`].
    pub fn local_experts(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> (Tile<u32>, Tile<bool>) {
        local_experts(self.c.map(), self.words(record, entry, len) & 0xffff)
    }

    /// The weights of `len` entries, as [`Records::words`].
    pub fn weights(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Tile<f32> {
        let first = self.first(record, entry);
        match (self.a.rec_weight, &self.arrived, self.a.ll_weight) {
            (Some(weight), Some(arrived), _) => weight.load(arrived, first, len),
            (_, _, Some(weight)) => weight.load(first, len, record / self.c.chunks(), self.epoch),
            _ => unreachable!("weights come as records do"),
        }
    }

    fn first(&self, record: Val<u32>, entry: Val<u32>) -> Val<u32> {
        (self.bank + record) * self.c.record_entries() + entry
    }
}
