//! Pages of a KV cache, pushed from the ranks that fill them into the pools of the ranks that read them.

use peerwarp::harness::elements::mixed;
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};
use peerwarp::prelude::*;

/// Most bytes of a page that a block pushes at once, as few pages shall keep many blocks busy.
const PART: u32 = 16 << 10;

/// A variant of the push.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "kv_push", kernel = kv_push, args = KvPushArgs, warps = 8)]
pub struct KvPush {
    /// Elements of a page.
    #[key(short = "p", range = 16..=65536, multiple_of = 16)]
    pub page: u32,
    /// Pages of a rank's pool.
    #[key(short = "n", range = 1..=16777216)]
    pub pool: u32,
    /// Requests of all ranks together.
    #[key(short = "q", range = 1..=4096)]
    pub requests: u32,
    /// Most pages of a request.
    #[key(short = "m", range = 1..=65536)]
    pub max_pages: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Type of the elements.
    #[key(values = [Dtype::Bf16, Dtype::Fp16, Dtype::F32, Dtype::Fp8], default = Dtype::Bf16)]
    pub dtype: Dtype,
    /// Parts of a page, which are pushed one by one.
    #[tune(short = "c", values = [1, 2, 4, 8, 16, 32, 64], default = |key| parts(key))]
    pub parts: u32,
    /// Blocks that push.
    #[tune(short = "b", shrinks, values = [1, 4, 16, 32, 64, 128], default = 128)]
    pub blocks: u32,
}

/// As few as fit on their way, where they are whole 16 elements.
fn parts(key: &KvPushKey) -> u32 {
    let fits = |parts: &u32| key.page / parts * key.dtype.bytes() <= PART;
    let whole = |parts: &u32| key.page.is_multiple_of(16 * parts);
    let all = [1, 2, 4, 8, 16, 32, 64];
    let least = all.into_iter().filter(whole).find(fits);
    least.or(all.into_iter().rev().find(whole)).unwrap_or(1)
}

impl Legal for KvPush {
    fn legal(&self) -> Result<(), Illegal> {
        let allowed = || "as many as cut the page into multiples of 16 elements".to_owned();
        Illegal::unless(self.page.is_multiple_of(16 * self.parts), "parts", self.parts, allowed)?;
        let allowed = || "so many that the parts of all requests' pages are fewer than 2^31".to_owned();
        let parts = u64::from(self.requests) * (u64::from(self.max_pages) + 1) * u64::from(self.parts);
        Illegal::unless(parts < 1 << 31, "max_pages", self.max_pages, allowed)
    }
}

impl KvPush {
    /// Elements of a part of a page.
    fn part(&self) -> u32 {
        self.page / self.parts
    }

    /// Pages of all requests.
    fn pages(&self) -> u32 {
        self.requests * self.max_pages
    }
}

/// Parameters of [`kv_push`]. All ranks pass the same `source`, `target` and `pages`.
#[derive(KernelArgs)]
#[args(config = KvPush)]
pub struct KvPushArgs {
    /// This rank's pages, `[page][element]`: peers write those that are pushed here.
    #[inout]
    #[len(|c| u64::from(c.pool) * u64::from(c.page))]
    #[dtype(|c| c.dtype)]
    pub pool: AnyWindow,
    /// The rank that has each request's pages.
    #[input]
    #[len(|c| c.requests.into())]
    pub source: Ptr<u32>,
    /// The rank that gets them.
    #[input]
    #[len(|c| c.requests.into())]
    pub target: Ptr<u32>,
    /// How many pages each request has.
    #[input]
    #[len(|c| c.requests.into())]
    pub pages: Ptr<u32>,
    /// Their places in this rank's pool, `[request][page]`; only of requests from this rank.
    #[input]
    #[len(|c| c.pages().into())]
    pub source_pages: Ptr<u32>,
    /// Their places in the other rank's pool, `[request][page]`; only of requests from this rank.
    #[input]
    #[len(|c| c.pages().into())]
    pub target_pages: Ptr<u32>,
    /// How many pages of each request are in this rank's pool: all of them, or 0 of requests to other ranks.
    #[output]
    #[len(|c| c.requests.into())]
    pub arrived: Ptr<u32>,
    /// A rank's pool may be written, `[launch's parity][rank]`.
    #[len(|c| 2 * u64::from(c.ranks))]
    pub free: Flags,
    /// Parts that have arrived, by request.
    #[len(|c| c.requests.into())]
    pub parts: Counts,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Copies each request's pages from the pool of one rank into that of another, where they are to stay.
///
/// A rank's pool may be written as soon as its launch begins, after everything before it on its stream. When the
/// launch ends, all pages for this rank are there. A page that is on its way is in no other request. A page that does not exist is
/// skipped, as is a request with more pages than `max_pages`: the wait for it expires.
#[kernel]
pub fn kv_push(c: &KvPush, a: &KvPushArgs) {
    let epoch = a.epoch.begin();
    let bank = epoch.parity() * c.ranks;
    role("complete", 1, |b| {
        a.free.signal(Peers::all(), bank + rank(), epoch);
        b.split(1, |warp| {
            for request in warp.strided(c.requests) {
                let there = if a.target.get(request) == rank() { a.pages.get(request) } else { 0.val() };
                if there > 0 {
                    // One more than there can be never comes.
                    let most = c.max_pages + 1;
                    let awaited = there.lt(most).select(there, most) * c.parts;
                    let _all = a.parts.from(a.source.get(request)).take(request, awaited);
                }
                a.arrived.set(request, there);
            }
        });
    });
    role("push", c.blocks, |b| {
        let _free = a.free.wait_all(bank, c.ranks, 1, epoch);
        let mut before = var(0u32);
        for request in 0..c.requests.val() {
            let to = a.target.get(request);
            let pages = a.pages.get(request);
            if a.source.get(request) == rank() && to < c.ranks && pages < c.max_pages + 1 {
                let parts = pages * c.parts;
                // Blocks go on where the request before ended, so that all of them have work.
                let first = (b.index() + c.blocks - before.get() % c.blocks) % c.blocks;
                for i in (first..parts).step_by(c.blocks) {
                    push(c, a, request, to, i);
                }
                before += parts;
            }
        }
    });
}

/// Pushes a part of a request's pages.
#[kernel]
fn push(c: &KvPush, a: &KvPushArgs, request: Val<u32>, to: Val<u32>, i: Val<u32>) {
    let page = request * c.max_pages + i / c.parts;
    let (source, target) = (a.source_pages.get(page), a.target_pages.get(page));
    if source < c.pool && target < c.pool {
        let first = (i % c.parts * c.part()).to_u64();
        let (here, there) = (source.to_u64() * u64::from(c.page), target.to_u64() * u64::from(c.page));
        let mut part = send_to(Peers::rank(to));
        part.put_any(&a.pool, there + first, a.pool.load(here + first, c.part()));
        part.count(&a.parts, request, 1);
    }
}

/// A request of a workload.
struct Moved {
    from: u32,
    to: u32,
    source: Vec<u32>,
    target: Vec<u32>,
}

impl KvPush {
    /// Requests from the lower half of pools to the upper one, as many pages as there are.
    fn requests(&self, turn: Turn) -> Vec<Moved> {
        let (seed, round) = (turn.seed, u64::from(turn.round));
        let drawn = |n: u64, below: u32| (mixed(seed ^ round << 40 ^ n) % u64::from(below.max(1))) as u32;
        let lower = self.pool / 2;
        let mut free = vec![lower; self.ranks as usize];
        let request = |at: u32| {
            let n = u64::from(at) << 20;
            let (from, to) = (drawn(n, self.ranks), drawn(n + 1, self.ranks));
            let left = &mut free[to as usize];
            let first = *left;
            *left -= first.min(drawn(n + 2, self.max_pages + 1));
            let target: Vec<u32> = (*left..first).rev().map(|page| self.pool - 1 - page).collect();
            let source = (0..target.len() as u64).map(|i| drawn(n + 3 + i, lower)).collect();
            Moved { from, to, source, target }
        };
        (0..self.requests).map(request).collect()
    }

    fn content(&self, turn: Turn) -> Vec<u8> {
        crate::numbers(self.dtype, self.pool as usize * self.page as usize, turn)
    }

    fn page_bytes(&self) -> usize {
        self.page as usize * self.dtype.bytes() as usize
    }

    /// What a rank passes of its requests.
    fn given(&self, rank: u32, requests: &[Moved]) -> Vec<Contents> {
        let of = |name, f: fn(&Moved) -> u32| Contents::of(name, &requests.iter().map(f).collect::<Vec<_>>());
        let table = |name, f: fn(&Moved) -> &[u32]| {
            let mut all = vec![u32::MAX; self.pages() as usize];
            for (row, request) in all.chunks_mut(self.max_pages as usize).zip(requests) {
                if request.from == rank {
                    row[..f(request).len()].copy_from_slice(f(request));
                }
            }
            Contents::of(name, &all)
        };
        vec![
            of("source", |r| r.from),
            of("target", |r| r.to),
            of("pages", |r| r.source.len() as u32),
            table("source_pages", |r| &r.source),
            table("target_pages", |r| &r.target),
        ]
    }
}

impl Workload for KvPush {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let mut all = self.given(turn.rank, &self.requests(turn));
        all.push(Contents::new("pool", self.content(turn)));
        all
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let (mut pool, bytes) = (self.content(turn), self.page_bytes());
        let requests = self.requests(turn);
        let mut arrived = vec![0; requests.len()];
        for (request, there) in requests.iter().zip(&mut arrived).filter(|(r, _)| r.to == turn.rank) {
            *there = request.source.len() as u32;
            let sent = self.content(Turn { rank: request.from, ..turn });
            for (source, target) in request.source.iter().zip(&request.target) {
                let page = &sent[*source as usize * bytes..][..bytes];
                pool[*target as usize * bytes..][..bytes].copy_from_slice(page);
            }
        }
        let arrived = arrived.iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
        vec![Expected::exactly("pool", self.dtype, pool), Expected::exactly("arrived", Dtype::U32, arrived)]
    }

    fn work(&self) -> Work {
        let mut work = Work { hops: 2, ..Work::all_to_all(self.ranks, 0) };
        for request in self.requests(Turn { seed: 0, rank: 0, round: 0 }) {
            work.bytes[request.from as usize][request.to as usize] +=
                (request.source.len() * self.page_bytes()) as u64;
        }
        work
    }
}
