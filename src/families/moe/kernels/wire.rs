//! What travels in dispatch, and where it lands: records, rows, and the flags of ranks that are ready.
//!
//! A record says where the entries of a chunk of tokens go. It travels with a flag or as LL elements ([`RecordWire`]). A row lands in
//! the inbox of each rank that it goes to; a rank's own rows may stay in the input ([`Arriving`]).

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::{at, owning};
use super::dispatch::{Launch, TokenArgs};
use super::protocol::Protocol;
use super::scales::Words;

/// Parameters of records, by how they come.
#[derive(KernelArgs, Clone)]
#[args(config = Dispatch)]
pub enum RecordArgs {
    /// With flags.
    #[when(|c| c.records_have_flags())]
    Flags(FlagRecordArgs),
    /// As LL elements, where rows come as packets and bases are in shared memory.
    Ll(LlRecordArgs),
}

/// Parameters of records that come with flags.
#[derive(KernelArgs, Clone)]
#[args(config = Dispatch)]
pub struct FlagRecordArgs {
    /// Tokens of the source, `[parity][source][chunk]`, with flags.
    #[len(|c| c.record_words())]
    pub rec_n: Sym<u32>,
    /// Entries of the chunk by expert, `[parity][source][chunk][expert]`.
    #[len(|c| c.record_words() * u64::from(c.map().experts))]
    pub rec_count: Sym<u32>,
    /// The complement of each entry's word: its expert, and its rank among those of its chunk with the same expert in the upper half,
    /// `[parity][source][chunk][entry]`. Zeros, which come from ranks that are not active, are entries that go nowhere.
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
#[derive(KernelArgs, Clone)]
#[args(config = Dispatch)]
pub struct LlRecordArgs {
    /// Tokens of the source, `[parity][source][chunk]`, with packets.
    #[len(|c| c.record_words())]
    pub ll_n: Ll<u32>,
    /// Entries of the chunk by expert of this rank, `[parity][source][chunk][expert]`.
    #[len(|c| if c.receivers_count() { 0 } else { c.record_words() * u64::from(c.map().at_most()) })]
    pub ll_count: Option<Ll<u32>>,
    /// The complement of each entry's word, `[parity][source][chunk][entry]`.
    #[len(|c| c.record_words() * u64::from(c.record_entries()))]
    pub ll_route: Ll<u32>,
    /// Weight of each entry, `[parity][source][chunk][entry]`.
    #[len(|c| if c.dedup { c.record_words() * u64::from(c.record_entries()) } else { 0 })]
    pub ll_weight: Option<Ll<f32>>,
}

impl RecordArgs {
    /// How records travel.
    pub(super) fn wire(&self) -> &dyn RecordWire {
        match self {
            RecordArgs::Flags(flags) => flags,
            RecordArgs::Ll(ll) => ll,
        }
    }
}

/// How records travel.
pub(super) trait RecordWire {
    /// Opens the record of number `number`, among those of all ranks, to `to`.
    fn open<'a>(&'a self, l: Launch<'a>, to: Peers, number: Val<u32>) -> Box<dyn OpenRecord + 'a>;

    /// The records of all ranks. Waits for their flags, where they have some.
    fn receive<'a>(&'a self, l: Launch<'a>) -> Box<dyn Records + 'a>;
}

/// A record on its way to ranks.
pub(super) trait OpenRecord {
    /// Puts the words of entries from `start` on: the expert of each, and its rank where senders count.
    fn words(&mut self, start: Val<u32>, words: Tile<u32>);

    /// Puts the weights of entries from `start` on, where they travel.
    fn weights(&mut self, start: Val<u32>, weights: Option<Tile<f32>>);

    /// Puts the count of each expert's entries.
    fn counts(&mut self, count: &Shared<u32>);

    /// Puts the words, the counts and the weights of all entries.
    fn all(&mut self, words: Tile<u32>, count: &Shared<u32>, weights: Option<Tile<f32>>);

    /// Sends it, with the number of the rank's tokens.
    fn send(self: Box<Self>, n: Val<u32>);

    /// The same with the counts.
    fn send_counted(mut self: Box<Self>, n: Val<u32>, count: &Shared<u32>) {
        self.counts(count);
        self.send(n);
    }
}

/// Entries of records for experts of this rank, by the experts' numbers among those and the records'.
pub(super) type Counts<'a> = Box<dyn Fn(Tile<u32>, Tile<u32>) -> Tile<u32> + 'a>;

/// The records of all ranks, as a rank receives them.
pub(super) trait Records {
    /// Tokens of the source of each of these records.
    fn n(&self, record: Tile<u32>) -> Tile<u32>;

    /// The most tokens of a source, as far as records have been waited for.
    fn most_tokens(&self) -> Val<u32>;

    /// Entries of each record for each expert, where senders count.
    fn counts(&self) -> Option<Counts<'_>>;

    /// The words of `len` entries of a record from `entry` on.
    fn words(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Tile<u32>;

    /// The words of all entries of all records.
    fn all_words(&self) -> Tile<u32>;

    /// The weights of `len` entries, as [`Records::words`], where they travel.
    fn weights(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Option<Tile<f32>>;
}

/// The number of an entry of a record among those of all records.
fn at_entry(c: &Dispatch, record: Val<u32>, entry: Val<u32>) -> Val<u32> {
    record * c.record_entries() + entry
}

/// A record that goes with a flag.
pub(super) struct FlagRecord<'a> {
    l: Launch<'a>,
    a: &'a FlagRecordArgs,
    number: Val<u32>,
    parcel: Parcel,
}

impl FlagRecordArgs {
    /// Opens a record, as [`RecordWire::open`].
    pub(super) fn record<'a>(&'a self, l: Launch<'a>, to: Peers, number: Val<u32>) -> FlagRecord<'a> {
        FlagRecord { l, a: self, number, parcel: send_to(to) }
    }
}

/// Entries of a record that follow one another, of which some are put.
pub(super) struct Entries {
    pub start: Val<u32>,
    pub sent: Tile<bool>,
    pub words: Tile<u32>,
    pub weights: Option<Tile<f32>>,
}

impl FlagRecord<'_> {
    fn put_weights(&mut self, at: Index, weights: Option<Tile<f32>>) {
        if let (Some(weight), Some(weights)) = (self.a.rec_weight, weights) {
            self.parcel.put(&weight, at, weights);
        }
    }

    /// Puts the words and the weights of some entries.
    pub fn put_where(&mut self, Entries { start, sent, words, weights }: Entries) {
        let at = at_entry(self.l.c, self.number, start).only(sent);
        self.parcel.put(&self.a.rec_route, at, !words);
        self.put_weights(at, weights);
    }

    /// Puts the counts of `experts` experts' entries from expert `first` on, which are the first ones of `count`.
    pub fn put_counts(&mut self, first: Val<u32>, experts: u32, count: &Shared<u32>) {
        let at = self.number * self.l.c.map().experts + first;
        self.parcel.put(&self.a.rec_count, at, count.load(0, experts));
    }

    /// Sends it, as [`OpenRecord::send`].
    pub fn finish(self, n: Val<u32>) {
        let FlagRecord { l, a, number, mut parcel } = self;
        parcel.put_value(&a.rec_n, number, n);
        parcel.signal(&a.rec_flag, number, l.epoch);
    }
}

impl OpenRecord for FlagRecord<'_> {
    fn words(&mut self, start: Val<u32>, words: Tile<u32>) {
        self.parcel.put(&self.a.rec_route, at_entry(self.l.c, self.number, start), !words);
    }

    fn weights(&mut self, start: Val<u32>, weights: Option<Tile<f32>>) {
        self.put_weights(at_entry(self.l.c, self.number, start).index(), weights);
    }

    fn counts(&mut self, count: &Shared<u32>) {
        self.put_counts(0u32.val(), self.l.c.map().experts, count);
    }

    fn all(&mut self, words: Tile<u32>, count: &Shared<u32>, weights: Option<Tile<f32>>) {
        self.words(0u32.val(), words);
        self.counts(count);
        self.weights(0u32.val(), weights);
    }

    fn send(self: Box<Self>, n: Val<u32>) {
        self.finish(n);
    }
}

/// Records that have arrived with flags, and the receipt of the wait for these.
struct FlagRecords<'a>(Launch<'a>, &'a FlagRecordArgs, Arrived);

impl RecordWire for FlagRecordArgs {
    fn open<'a>(&'a self, l: Launch<'a>, to: Peers, number: Val<u32>) -> Box<dyn OpenRecord + 'a> {
        Box::new(self.record(l, to, number))
    }

    fn receive<'a>(&'a self, l: Launch<'a>) -> Box<dyn Records + 'a> {
        let arrived = self.rec_flag.wait_all(l.bank, l.c.records(), l.c.chunks(), l.epoch);
        Box::new(FlagRecords(l, self, arrived))
    }
}

impl Records for FlagRecords<'_> {
    fn n(&self, record: Tile<u32>) -> Tile<u32> {
        self.1.rec_n.gather(&self.2, record + self.0.bank, true, 0)
    }

    fn most_tokens(&self) -> Val<u32> {
        self.n(arange(self.0.c.records())).max()
    }

    fn counts(&self) -> Option<Counts<'_>> {
        Some(Box::new(|expert, record| flag_counts(self, expert, record)))
    }

    fn words(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Tile<u32> {
        let FlagRecords(l, a, arrived) = self;
        !a.rec_route.load(arrived, at_entry(l.c, l.bank + record, entry), len)
    }

    fn all_words(&self) -> Tile<u32> {
        let FlagRecords(Launch { c, bank, .. }, a, arrived) = self;
        let entry = arange(c.records() * c.record_entries());
        !a.rec_route.gather(arrived, entry + *bank * c.record_entries(), true, 0)
    }

    fn weights(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Option<Tile<f32>> {
        let FlagRecords(l, a, arrived) = self;
        Some(a.rec_weight?.load(arrived, at_entry(l.c, l.bank + record, entry), len))
    }
}

/// Counts of all experts' entries.
#[kernel]
fn flag_counts(records: &FlagRecords<'_>, expert: Tile<u32>, record: Tile<u32>) -> Tile<u32> {
    let FlagRecords(Launch { c, bank, .. }, a, arrived) = records;
    let (map, number) = (c.map(), record + *bank);
    let owned = expert < owning(map).owned(rank());
    let first = owning(map).first(rank());
    a.rec_count.gather(arrived, number * map.experts + first + expert, owned, 0)
}

/// A record that goes as LL elements.
struct LlRecord<'a> {
    l: Launch<'a>,
    a: &'a LlRecordArgs,
    to: Peers,
    number: Val<u32>,
}

impl OpenRecord for LlRecord<'_> {
    fn words(&mut self, start: Val<u32>, words: Tile<u32>) {
        self.a.ll_route.send(self.to, at_entry(self.l.c, self.number, start), !words, self.l.epoch);
    }

    fn weights(&mut self, start: Val<u32>, weights: Option<Tile<f32>>) {
        if let (Some(weight), Some(weights)) = (self.a.ll_weight, weights) {
            weight.send(self.to, at_entry(self.l.c, self.number, start), weights, self.l.epoch);
        }
    }

    /// Each rank gets those of its own experts.
    fn counts(&mut self, count: &Shared<u32>) {
        if let Some(ll) = self.a.ll_count {
            send_counts(self.l, &ll, self.number, count);
        }
    }

    fn all(&mut self, words: Tile<u32>, count: &Shared<u32>, weights: Option<Tile<f32>>) {
        self.counts(count);
        self.words(0u32.val(), words);
        self.weights(0u32.val(), weights);
    }

    /// Receivers poll the number of tokens first. It goes last: then they hardly poll for the rest.
    fn send(self: Box<Self>, n: Val<u32>) {
        self.a.ll_n.send(self.to, self.number, splat(n, 1), self.l.epoch);
    }
}

/// Sends each rank the counts of its own experts.
#[kernel]
fn send_counts(l: Launch<'_>, ll: &Ll<u32>, number: Val<u32>, count: &Shared<u32>) {
    let map = l.c.map();
    let most = map.at_most();
    for to in 0..l.c.ranks.val() {
        let expert = arange(most);
        let mine = expert < owning(map).owned(to);
        let of_rank = count.gather(expert + owning(map).first(to), mine, 0);
        ll.send(Peers::rank(to), number * most, of_rank, l.epoch);
    }
}

/// Records that arrive as LL elements.
struct LlRecords<'a>(Launch<'a>, &'a LlRecordArgs);

impl RecordWire for LlRecordArgs {
    fn open<'a>(&'a self, l: Launch<'a>, to: Peers, number: Val<u32>) -> Box<dyn OpenRecord + 'a> {
        Box::new(LlRecord { l, a: self, to, number })
    }

    fn receive<'a>(&'a self, l: Launch<'a>) -> Box<dyn Records + 'a> {
        Box::new(LlRecords(l, self))
    }
}

impl Records for LlRecords<'_> {
    fn n(&self, record: Tile<u32>) -> Tile<u32> {
        let LlRecords(l, a) = self;
        a.ll_n.gather(record + l.bank, record / l.c.chunks(), true, l.epoch)
    }

    /// No record has been waited for.
    fn most_tokens(&self) -> Val<u32> {
        self.0.c.tokens.val()
    }

    fn counts(&self) -> Option<Counts<'_>> {
        let count = self.1.ll_count?;
        Some(Box::new(move |expert, record| ll_counts(self.0, &count, expert, record)))
    }

    fn words(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Tile<u32> {
        let LlRecords(l, a) = self;
        !a.ll_route.load(at_entry(l.c, l.bank + record, entry), len, record / l.c.chunks(), l.epoch)
    }

    fn all_words(&self) -> Tile<u32> {
        let LlRecords(Launch { c, bank, epoch, .. }, a) = self;
        let entry = arange(c.records() * c.record_entries());
        let source = entry / (c.chunks() * c.record_entries());
        !a.ll_route.gather(entry + *bank * c.record_entries(), source, true, *epoch)
    }

    fn weights(&self, record: Val<u32>, entry: Val<u32>, len: u32) -> Option<Tile<f32>> {
        let (LlRecords(l, a), first) = (self, || at_entry(self.0.c, self.0.bank + record, entry));
        Some(a.ll_weight?.load(first(), len, record / l.c.chunks(), l.epoch))
    }
}

/// Counts of this rank's experts' entries.
#[kernel]
fn ll_counts(l: Launch<'_>, count: &Ll<u32>, expert: Tile<u32>, record: Tile<u32>) -> Tile<u32> {
    let (c, number) = (l.c, record + l.bank);
    let owned = expert < owning(c.map()).owned(rank());
    count.gather(number * c.map().at_most() + expert, record / c.chunks(), owned, l.epoch)
}

/// Flags by which ranks say that they are ready, where records order nothing.
#[derive(KernelArgs, Clone)]
#[args(config = Dispatch)]
pub struct ReadyArgs {
    /// The source is in this launch, ready for what the next one sends, `[parity][source]`.
    #[len(|c| if c.protocol == Protocol::Packets { 2 * u64::from(c.ranks) } else { 0 })]
    pub ready: Option<Flags>,
}

/// Signals every rank, where records order nothing, that this rank is ready: what it did in earlier launches is over, such as
/// reading their records and emptying their packets. A block of its own signals, so that its fence delays no other block.
#[kernel]
pub(super) fn notify_ready(a: &ReadyArgs, ranks: u32, epoch: Epoch) {
    if let Some(ready) = a.ready {
        ready.signal(Peers::all(), epoch.parity() * ranks + rank(), epoch);
    }
}

/// Waits until every rank is ready: what this rank sends in later launches comes after what they did before. One block
/// waits for that.
#[kernel]
pub(super) fn await_ready(ready: &Flags, ranks: u32, epoch: Epoch) {
    let _all = ready.wait_all(epoch.parity() * ranks, ranks, 1, epoch);
}

/// A row on its way.
#[derive(Message, Clone)]
#[message(config = Dispatch)]
pub struct Row {
    /// Arriving rows, `[source][slot][row]`; packets have two banks. The output of a dispatch without `rows`.
    #[len(|c| c.row())]
    #[dtype(|c| c.moved())]
    pub row: AnyField,
    /// Arriving scales, `[source][slot][scale]`; packets have two banks, and zeros fill each row's last packet. An output of a dispatch
    /// with neither `rows` nor `row_scale`.
    #[len(|c| c.sent_scales())]
    #[dtype(|c| c.scale())]
    pub scales: Option<AnyField>,
}

/// What rows of dispatch arrive in.
#[derive(KernelArgs, Clone)]
#[args(config = Dispatch)]
pub struct InboxArgs {
    /// Rows on their way to the ranks of their experts: a slot's.
    #[channel(|c| c.arrivals())]
    pub rows: Channel<Row>,
}

/// A part of a token's row on its way to its ranks.
pub(super) struct Open<'a> {
    pub rows: OpenChannel<'a, Row>,
    pub row: Outgoing<'a, Row>,
    pub token: Val<u32>,
    pub part: Val<u32>,
}

impl Open<'_> {
    /// Puts a piece of the row.
    pub fn put(&self, start: Val<u32>, x: AnyTile) {
        self.row.field(self.rows.row).put(start.to_u64(), x);
    }

    /// Puts scales of the row from word `first` on, where rows have some.
    pub fn put_scales(&self, first: Val<u32>, scales: AnyTile) {
        if let Some(field) = self.rows.scales {
            self.row.field(field).put(first.to_u64(), scales);
        }
    }

    /// Ends it.
    pub fn done(self) {
        self.row.done();
    }
}

/// A row that a rank receives.
pub(super) trait Arriving {
    /// A piece of the row.
    fn piece(&self, start: Val<u32>, len: u32) -> AnyTile;

    /// Scales of the row, where rows have some, and what travels with them.
    fn scales(&self, words: Words) -> Option<AnyTile>;
}

/// A row in the inbox.
pub(super) struct Received<'a> {
    rows: OpenChannel<'a, Row>,
    message: Incoming<'a, Row>,
}

impl<'a> Received<'a> {
    /// The row of slot `slot` of rank `source`. Waits for its flag, where it has one.
    pub fn wait(a: &'a InboxArgs, source: Val<u32>, slot: Val<u32>, epoch: Epoch) -> Received<'a> {
        let rows = a.rows.open(epoch);
        Received { rows, message: rows.from(source).slot(slot) }
    }
}

impl Arriving for Received<'_> {
    fn piece(&self, start: Val<u32>, len: u32) -> AnyTile {
        self.message.field(self.rows.row).load(start.to_u64(), len)
    }

    fn scales(&self, words: Words) -> Option<AnyTile> {
        self.rows.scales.map(|scales| self.message.field(scales).load(words.first.to_u64(), words.sent))
    }
}

/// The row of a token of this rank's own, which stays in the input.
pub(super) struct Given<'a> {
    pub c: &'a Dispatch,
    pub a: &'a TokenArgs,
    pub token: Val<u32>,
}

impl Arriving for Given<'_> {
    fn piece(&self, start: Val<u32>, len: u32) -> AnyTile {
        self.a.x.load(at(self.token, self.c.row()) + start.to_u64(), len)
    }

    fn scales(&self, words: Words) -> Option<AnyTile> {
        self.a.x_scale.map(|scales| words.load(self.c, &scales, self.token))
    }
}
