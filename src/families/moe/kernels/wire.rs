//! Records of dispatch: what a rank tells every rank about a chunk of its tokens, whichever way it travels.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::{first_expert, local_experts, owned_experts};
use super::protocol::Protocol;

/// Parameters of records, by how they come.
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub enum RecordArgs {
    /// With flags.
    #[when(|c| c.records_have_flags())]
    Flags(FlagRecordArgs),
    /// As LL elements, where rows come as packets and bases are in shared memory.
    Ll(LlRecordArgs),
}

/// Parameters of records that come with flags.
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub struct FlagRecordArgs {
    /// Tokens of the source, `[parity][source][chunk]`, with flags.
    #[len(|c| c.record_words())]
    pub rec_n: Sym<u32>,
    /// Entries of the chunk by expert, `[parity][source][chunk][expert]`.
    #[len(|c| c.record_words() * u64::from(c.experts))]
    pub rec_count: Sym<u32>,
    /// Expert of each entry, and its rank among those of its chunk with the same expert in the upper half,
    /// `[parity][source][chunk][entry]`.
    #[len(|c| c.record_words() * u64::from(c.record_entries()))]
    pub rec_route: Sym<u32>,
    /// Weight of each entry, `[parity][source][chunk][entry]`.
    #[len(|c| if c.dedup { c.record_words() * u64::from(c.record_entries()) } else { 0 })]
    pub rec_weight: Option<Sym<f32>>,
    /// A record has arrived, `[parity][source][chunk]`.
    #[len(|c| c.record_words())]
    pub rec_flag: Flags,
}

/// Parameters of records that come as LL elements.
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub struct LlRecordArgs {
    /// Tokens of the source, `[parity][source][chunk]`, with packets.
    #[len(|c| c.record_words())]
    pub ll_n: Ll<u32>,
    /// Entries of the chunk by expert of this rank, `[parity][source][chunk][expert]`.
    #[len(|c| if c.receivers_count() { 0 } else { c.record_words() * u64::from(c.map().at_most()) })]
    pub ll_count: Option<Ll<u32>>,
    /// Expert and rank of each entry, `[parity][source][chunk][entry]`.
    #[len(|c| c.record_words() * u64::from(c.record_entries()))]
    pub ll_route: Ll<u32>,
    /// Weight of each entry, `[parity][source][chunk][entry]`.
    #[len(|c| if c.dedup { c.record_words() * u64::from(c.record_entries()) } else { 0 })]
    pub ll_weight: Option<Ll<f32>>,
}

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
    pub fn send(self, c: &Dispatch, a: &RecordArgs, to: Peers, epoch: Epoch) {
        match a {
            RecordArgs::Flags(a) => self.send_with_flag(c, a, to, epoch),
            RecordArgs::Ll(a) => self.send_as_ll(c, a, to, epoch),
        }
    }

    #[kernel]
    fn send_with_flag(self, c: &Dispatch, a: &FlagRecordArgs, to: Peers, epoch: Epoch) {
        let mut parcel = send_to(to);
        parcel.put(&a.rec_route, self.number * c.record_entries(), self.words);
        if let Some(count) = self.count {
            parcel.put(&a.rec_count, self.number * c.experts, count.load(0, c.experts));
        }
        if let (Some(weight), Some(weights)) = (a.rec_weight, self.weights) {
            parcel.put(&weight, self.number * c.record_entries(), weights);
        }
        parcel.put_value(&a.rec_n, self.number, self.n);
        parcel.signal(&a.rec_flag, self.number, epoch);
    }

    #[kernel]
    fn send_as_ll(self, c: &Dispatch, a: &LlRecordArgs, to: Peers, epoch: Epoch) {
        if let Some(count) = self.count {
            send_counts(c, a, self.number, &count, epoch);
        }
        a.ll_route.send(to, self.number * c.record_entries(), self.words, epoch);
        if let (Some(weight), Some(weights)) = (a.ll_weight, self.weights) {
            weight.send(to, self.number * c.record_entries(), weights, epoch);
        }
        // What receivers poll first goes last: then they hardly poll for the rest.
        a.ll_n.send(to, self.number, splat(self.n, 1), epoch);
    }
}

/// A record that goes to ranks part by part, and with the count of each expert's entries at its end.
pub(super) struct RecordInParts<'a> {
    c: &'a Dispatch,
    number: Val<u32>,
    to: Peers,
    goes: Goes<'a>,
}

/// How a record goes.
enum Goes<'a> {
    WithFlag(&'a FlagRecordArgs, Parcel),
    AsLl(&'a LlRecordArgs),
}

impl<'a> RecordInParts<'a> {
    /// The record with this number, in the bank of this launch.
    pub fn new(c: &'a Dispatch, a: &'a RecordArgs, to: Peers, number: Val<u32>) -> RecordInParts<'a> {
        let goes = match a {
            RecordArgs::Flags(a) => Goes::WithFlag(a, send_to(to)),
            RecordArgs::Ll(a) => Goes::AsLl(a),
        };
        RecordInParts { c, number, to, goes }
    }

    /// Puts the words and the weights of entries from `start` on.
    pub fn put(&mut self, start: Val<u32>, words: Tile<u32>, weights: Option<Tile<f32>>, epoch: Epoch) {
        let first = self.number * self.c.record_entries() + start;
        match &mut self.goes {
            Goes::WithFlag(a, open) => {
                open.put(&a.rec_route, first, words);
                if let (Some(weight), Some(weights)) = (a.rec_weight, weights) {
                    open.put(&weight, first, weights);
                }
            }
            Goes::AsLl(a) => {
                a.ll_route.send(self.to, first, words, epoch);
                if let (Some(weight), Some(weights)) = (a.ll_weight, weights) {
                    weight.send(self.to, first, weights, epoch);
                }
            }
        }
    }

    /// Sends the rest: the counts, and the tokens of the rank.
    pub fn send(self, n: Val<u32>, count: &Shared<u32>, epoch: Epoch) {
        match self.goes {
            Goes::WithFlag(a, mut open) => {
                open.put(&a.rec_count, self.number * self.c.experts, count.load(0, self.c.experts));
                open.put_value(&a.rec_n, self.number, n);
                open.signal(&a.rec_flag, self.number, epoch);
            }
            Goes::AsLl(a) => {
                send_counts(self.c, a, self.number, count, epoch);
                a.ll_n.send(self.to, self.number, splat(n, 1), epoch);
            }
        }
    }
}

/// Sends each rank the counts of its own experts.
#[kernel]
fn send_counts(c: &Dispatch, a: &LlRecordArgs, number: Val<u32>, count: &Shared<u32>, epoch: Epoch) {
    if let Some(ll) = a.ll_count {
        let most = c.map().at_most();
        for to in 0..c.ranks.val() {
            let expert = arange(most);
            let mine = expert < owned_experts(c.map(), to);
            let of_rank = count.gather(expert + first_expert(c.map(), to), mine, 0);
            ll.send(Peers::rank(to), number * most, of_rank, epoch);
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
    epoch: Epoch,
    /// The first one of this launch.
    bank: Val<u32>,
    come: Come<'a>,
}

/// How records come.
enum Come<'a> {
    /// With flags, of whose wait this is the receipt.
    WithFlags(&'a FlagRecordArgs, Arrived),
    AsLl(&'a LlRecordArgs),
}

impl<'a> Records<'a> {
    /// Waits for flags, where there are some.
    pub fn receive(c: &'a Dispatch, a: &'a RecordArgs, epoch: Epoch, bank: Val<u32>) -> Records<'a> {
        let come = match a {
            RecordArgs::Flags(a) => {
                Come::WithFlags(a, a.rec_flag.wait_all(bank, c.records(), c.chunks(), epoch))
            }
            RecordArgs::Ll(a) => Come::AsLl(a),
        };
        Records { c, epoch, bank, come }
    }

    /// Tokens of the source of each of these records.
    pub fn n(&self, record: Tile<u32>) -> Tile<u32> {
        match &self.come {
            Come::WithFlags(a, arrived) => a.rec_n.gather(arrived, record + self.bank, true, 0),
            Come::AsLl(a) => a.ll_n.gather(record + self.bank, record / self.c.chunks(), true, self.epoch),
        }
    }

    /// What says how many entries records have for each expert, where their senders have counted.
    pub fn counts(&self) -> Option<Counts<'_>> {
        let come = match &self.come {
            Come::WithFlags(a, arrived) => CountsCome::WithFlags(&a.rec_count, arrived),
            Come::AsLl(a) => CountsCome::AsLl(a.ll_count.as_ref()?, self.epoch),
        };
        Some(Counts { c: self.c, bank: self.bank, come })
    }

    /// The words of `len` entries: `entry` is the first of them in its record, whose number is `record`.
    pub fn words(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Tile<u32> {
        let first = self.first(record, entry);
        match &self.come {
            Come::WithFlags(a, arrived) => a.rec_route.load(arrived, first, len),
            Come::AsLl(a) => a.ll_route.load(first, len, record / self.c.chunks(), self.epoch),
        }
    }

    /// The words of all entries of all records.
    pub fn all_words(&self) -> Tile<u32> {
        let c = self.c;
        let entry = arange(c.records() * c.record_entries());
        match &self.come {
            Come::WithFlags(a, arrived) => {
                a.rec_route.gather(arrived, entry + self.bank * c.record_entries(), true, 0)
            }
            Come::AsLl(a) => {
                let source = entry / (c.chunks() * c.record_entries());
                a.ll_route.gather(entry + self.bank * c.record_entries(), source, true, self.epoch)
            }
        }
    }

    /// The experts of `len` entries among those of this rank, and which are this rank's, as [`Records::words`].
    pub fn local_experts(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> (Tile<u32>, Tile<bool>) {
        local_experts(self.c.map(), self.words(record, entry, len) & 0xffff)
    }

    /// The weights of `len` entries, as [`Records::words`], where they travel.
    pub fn weights(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Option<Tile<f32>> {
        let first = || self.first(record, entry);
        match &self.come {
            Come::WithFlags(a, arrived) => Some(a.rec_weight?.load(arrived, first(), len)),
            Come::AsLl(a) => Some(a.ll_weight?.load(first(), len, record / self.c.chunks(), self.epoch)),
        }
    }

    fn first(&self, record: Val<u32>, entry: Val<u32>) -> Val<u32> {
        (self.bank + record) * self.c.record_entries() + entry
    }
}

/// How many entries records have for each expert, as a rank receives it.
pub(super) struct Counts<'a> {
    c: &'a Dispatch,
    bank: Val<u32>,
    come: CountsCome<'a>,
}

/// How counts come.
enum CountsCome<'a> {
    /// Of all experts.
    WithFlags(&'a Sym<u32>, &'a Arrived),
    /// Of this rank's experts.
    AsLl(&'a Ll<u32>, Epoch),
}

impl Counts<'_> {
    /// Entries of records for experts of this rank, by their numbers among those.
    #[kernel]
    pub fn of(&self, expert: Tile<u32>, record: Tile<u32>) -> Tile<u32> {
        let (c, number) = (self.c, record + self.bank);
        let owned = expert < owned_experts(c.map(), rank());
        match self.come {
            CountsCome::WithFlags(count, arrived) => {
                let first = first_expert(c.map(), rank());
                count.gather(arrived, number * c.experts + first + expert, owned, 0)
            }
            CountsCome::AsLl(count, epoch) => {
                count.gather(number * c.map().at_most() + expert, record / c.chunks(), owned, epoch)
            }
        }
    }
}
