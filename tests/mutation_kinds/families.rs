//! Families with a bug each that a number chooses; 0 is none.

use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Workload};
use peerwarp::prelude::*;

/// Rows of a rank, and blocks of a role.
pub const PARTS: u32 = 4;
/// Elements of a row.
const LEN: u32 = 16;
/// Most rows that a caller passes.
const MOST: u32 = 8;

macro_rules! family {
    ($(#[$doc:meta])* $family:ident, $name:tt, $kernel:ident, $args:ident) => {
        $(#[$doc])*
        #[derive(Family, Clone, Debug, PartialEq)]
        #[family(name = $name, kernel = $kernel, args = $args, warps = warps)]
        pub struct $family {
            /// World size.
            #[key(short = "r", range = 2..=4, ranks)]
            pub ranks: u32,
            /// Which bug it has.
            #[key(short = "b", range = 0..=99)]
            pub bug: u32,
            /// Warps of a block.
            #[tune(short = "w", values = [1], default = 1)]
            pub warps: u32,
        }

        impl Legal for $family {
            fn legal(&self) -> Result<(), Illegal> {
                Ok(())
            }
        }
    };
}

family!(
    /// Rows and a heading to all ranks, each by an epoch word and flags of its own. Both are read after the heading's wait.
    Relay, "relay", relay, RelayArgs
);

#[derive(KernelArgs)]
#[args(config = Relay)]
pub struct RelayArgs {
    /// This rank's rows.
    #[input]
    #[len(|_| (PARTS * LEN).into())]
    pub x: Ptr<f32>,
    /// The rows of all ranks.
    #[output]
    #[len(|c| u64::from(c.ranks * PARTS * LEN))]
    pub out: Ptr<f32>,
    /// Rows and headings of two launches.
    #[len(|c| u64::from(2 * c.ranks * (PARTS + 1) * LEN))]
    pub inbox: Sym<f32>,
    /// That a row is there.
    #[len(|c| u64::from(2 * c.ranks * PARTS))]
    pub sent: Flags,
    /// That the heading is there.
    #[len(|c| u64::from(2 * c.ranks))]
    pub headed: Flags,
    /// Counts launches for rows.
    pub epoch: EpochWord,
    /// Counts them for headings.
    pub headings: EpochWord,
}

#[kernel]
pub fn relay(c: &Relay, a: &RelayArgs) {
    let epoch = a.epoch.begin();
    let heading = a.headings.begin();
    role("all", 1, |_| {
        let bank = epoch.parity() * c.ranks;
        let place = (bank + rank()) * (PARTS + 1) * LEN;
        for part in 0..PARTS {
            let mut parcel = send_to(Peers::all());
            parcel.put(&a.inbox, place + part * LEN, a.x.load(part * LEN, LEN));
            parcel.signal(&a.sent, (bank + rank()) * PARTS + part, epoch);
        }
        let mut parcel = send_to(Peers::all());
        parcel.put(&a.inbox, place + PARTS * LEN, a.x.load(0, LEN));
        parcel.signal(&a.headed, heading.parity() * c.ranks + rank(), heading);
        let _sent = a.sent.wait_all(bank * PARTS, c.ranks * PARTS, PARTS, epoch);
        let got = a.headed.wait_all(heading.parity() * c.ranks, c.ranks, 1, heading);
        for from in 0..c.ranks.val() {
            let rows = a.inbox.load(&got, (bank + from) * (PARTS + 1) * LEN, PARTS * LEN);
            a.out.store(from * PARTS * LEN, rows);
        }
    });
}

family!(
    /// A row to all ranks with a flag; looks at rows before they are there.
    Looks, "looks", looks, LooksArgs
);

#[derive(KernelArgs)]
#[args(config = Looks)]
pub struct LooksArgs {
    /// This rank's row.
    #[input]
    #[len(|_| LEN.into())]
    pub x: Ptr<f32>,
    /// The rows of all ranks.
    #[output]
    #[len(|c| u64::from(c.ranks * LEN))]
    pub out: Ptr<f32>,
    /// Rows of two launches.
    #[len(|c| u64::from(2 * c.ranks * LEN))]
    pub inbox: Sym<f32>,
    /// That a row is there.
    #[len(|c| u64::from(2 * c.ranks))]
    pub sent: Flags,
    /// That a rank has begun, and that it has sent once more.
    #[len(|c| u64::from(4 * c.ranks))]
    pub begun: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

pub const BUGS_OF_LOOKS: u32 = 8;

#[kernel]
pub fn looks(c: &Looks, a: &LooksArgs) {
    let epoch = a.epoch.begin();
    role("all", 1, |_| {
        let bank = epoch.parity() * c.ranks;
        let (me, next) = (rank(), (rank() + 1) % c.ranks);
        a.begun.signal(Peers::all(), bank + me, epoch);
        let begun = a.begun.wait_all(bank, c.ranks, 1, epoch);
        let mut parcel = send_to(Peers::all());
        parcel.put(&a.inbox, (bank + me) * LEN, a.x.load(0, LEN));
        parcel.signal(&a.sent, bank + me, epoch);
        if c.bug == 1 {
            // Once more behind the signal, with a signal that is awaited after the look.
            let mut late = send_to(Peers::all());
            late.put(&a.inbox, (bank + me) * LEN, a.x.load(0, LEN));
            late.signal(&a.begun, 2 * c.ranks + bank + me, epoch);
        }
        let early = match c.bug {
            // The receipt of another wait, of its own signal, of the next rank's, of all but the last one.
            2 => Some(begun),
            3 => Some(a.sent.from(me).wait(bank + me, epoch)),
            4 => Some(a.sent.from(next).wait(bank + next, epoch)),
            5 => Some(a.sent.wait_all(bank, c.ranks - 1, 1, epoch)),
            // The flags of the launch before.
            6 => Some(a.sent.wait_all(c.ranks - bank, c.ranks, 1, epoch)),
            _ => None,
        };
        if let Some(early) = early {
            for from in 0..c.ranks.val() {
                a.out.store(from * LEN, a.inbox.load(&early, (bank + from) * LEN, LEN));
            }
        }
        let got = a.sent.wait_all(bank, c.ranks, 1, epoch);
        for from in 0..c.ranks.val() {
            let at = match c.bug {
                // The other bank, and a row too far.
                7 => (c.ranks - bank + from) * LEN,
                8 => (bank + from + 1) % (2 * c.ranks) * LEN,
                _ => (bank + from) * LEN,
            };
            a.out.store(from * LEN, a.inbox.load(&got, at, LEN));
        }
        if c.bug == 1 {
            let _late = a.begun.wait_all(2 * c.ranks + bank, c.ranks, 1, epoch);
        }
    });
}

family!(
    /// Numbers that do not fit 32 bits and bound something.
    Sizes, "sizes", sizes, SizesArgs
);

#[derive(KernelArgs)]
#[args(config = Sizes)]
pub struct SizesArgs {
    /// Results.
    #[output]
    #[len(|_| 64)]
    pub out: Ptr<u32>,
}

pub const BUGS_OF_SIZES: u32 = 12;

#[kernel]
pub fn sizes(c: &Sizes, a: &SizesArgs) {
    role("all", 1, |_| {
        let rows = rank() + 65536;
        // From 65536 times 65537 on: 65536 and more where it wraps.
        let n = rows * 65537;
        let wide = rows.to_u64() * 65537;
        let mut sum = var(0u32);
        match c.bug {
            0 => {
                if wide < 100_000 {
                    sum += 1;
                }
                sum += (wide / 65537).to_u32();
            }
            1 => {
                if n < 100_000 {
                    sum += 1;
                }
            }
            2 => {
                for i in 0..n {
                    sum += i;
                }
            }
            3 => sum += n.min(5),
            4 => sum += n.max(5),
            5 => sum += n / 3,
            6 => sum += (n.to_u64() / 65537).to_u32(),
            7 => {
                let mask = (arange(8) + n) < 100_000;
                a.out.store_where(8, arange(8), mask);
            }
            8 => {
                let mut end = var(0u32);
                end += n;
                while sum < end.get() {
                    sum += 32768;
                }
            }
            9 => {
                if (rows << 16) < 5 {
                    sum += 1;
                }
            }
            10 => a.out.set(n - 65536, 1),
            11 => sum += (splat(n, 8).minimum(arange(8))).sum(),
            _ => {
                if (n + 3) * 2 > 1000 {
                    sum += 1;
                }
            }
        }
        a.out.set(0, sum.get());
    });
}

family!(
    /// Copies the rows that a caller passes.
    Rows, "rows", rows, RowsArgs
);

#[derive(KernelArgs)]
#[args(config = Rows)]
pub struct RowsArgs {
    /// Rows.
    #[input]
    #[rows(n, |_| MOST)]
    #[len(|_| u64::from(MOST * LEN))]
    pub x: Ptr<f32>,
    /// Other rows.
    #[input]
    #[rows(m, |_| MOST)]
    #[len(|_| u64::from(MOST * LEN))]
    pub y: Ptr<f32>,
    /// The rows again.
    #[output]
    #[rows(n, |_| MOST)]
    #[len(|_| u64::from(MOST * LEN))]
    pub out: Ptr<f32>,
    /// A row's sum.
    #[output]
    #[len(|_| LEN.into())]
    pub last: Ptr<f32>,
    /// How many rows there are.
    pub n: Val<u32>,
    /// How many other rows there are.
    pub m: Val<u32>,
}

pub const BUGS_OF_ROWS: u32 = 10;

#[kernel]
pub fn rows(c: &Rows, a: &RowsArgs) {
    role("copy", 1, |b| {
        let copy = |i: Val<u32>| a.out.store(i * LEN, a.x.load(i * LEN, LEN));
        match c.bug {
            0 => {
                for i in b.strided(a.n) {
                    copy(i);
                }
                for i in b.strided(a.m) {
                    let _other = a.y.load(i * LEN, LEN);
                }
            }
            // One row more, all that there may be, and those of another number.
            1 => {
                for i in b.strided(a.n + 1) {
                    copy(i);
                }
            }
            2 => {
                for i in b.strided(MOST) {
                    copy(i);
                }
            }
            3 => {
                for i in b.strided(a.m) {
                    copy(i);
                }
            }
            // Rows by twos, of which the last may be half there.
            4 => {
                for i in b.strided((a.n + 1) / 2) {
                    a.out.store(2 * i * LEN, a.x.load(2 * i * LEN, 2 * LEN));
                }
            }
            // The row behind the last one, the last row of none, and the first row of none.
            5 => {
                if a.n < MOST {
                    a.last.store(0, a.x.load(a.n * LEN, LEN));
                }
            }
            6 => a.last.store(0, a.x.load((a.n.max(1) - 1) * LEN, LEN)),
            7 => a.last.store(0, a.x.load(0, LEN)),
            8 => a.last.store(0, a.x.gather(arange(LEN) + a.n * LEN, true, 0.0)),
            // A store behind the last row, and one of other rows.
            9 => a.out.store(a.n.min(MOST - 1) * LEN, splat(0.0, LEN)),
            _ => {
                for i in b.strided(a.n) {
                    let other = a.y.load(i * LEN, LEN);
                    a.out.store(i * LEN, other);
                }
            }
        }
    });
}

family!(
    /// Blocks make parts, and another role takes them.
    Orders, "orders", orders, OrdersArgs
);

#[derive(KernelArgs)]
#[args(config = Orders)]
pub struct OrdersArgs {
    /// What parts are made of.
    #[input]
    #[len(|_| u64::from(PARTS * LEN))]
    pub x: Ptr<f32>,
    /// Parts.
    #[len(|_| u64::from(PARTS * LEN))]
    pub parts: Ptr<f32>,
    /// Results.
    #[output]
    #[len(|_| u64::from(PARTS * LEN))]
    pub out: Ptr<f32>,
    /// That a part is made.
    #[len(|_| PARTS.into())]
    pub made: BlockFlags,
    /// That all is taken.
    #[len(|_| 1)]
    pub taken: BlockFlags,
    /// Counts launches.
    pub epoch: EpochWord,
}

pub const BUGS_OF_ORDERS: u32 = 10;

#[kernel]
pub fn orders(c: &Orders, a: &OrdersArgs) {
    let epoch = a.epoch.begin();
    role("make", PARTS, |b| {
        let part = b.index();
        let make = || a.parts.store(part * LEN, a.x.load(part * LEN, LEN) * 2.0);
        match c.bug {
            // The signal first; only the first block's; of the next block's flag; and once more behind it.
            1 => {
                a.made.signal(part, epoch);
                make();
            }
            2 => {
                make();
                if part == 0 {
                    a.made.signal(part, epoch);
                }
            }
            3 => {
                make();
                a.made.signal((part + 1) % PARTS, epoch);
            }
            4 => {
                make();
                a.made.signal(part, epoch);
                make();
            }
            _ => {
                make();
                a.made.signal(part, epoch);
            }
        }
    });
    role("take", 1, |_| {
        match c.bug {
            // No wait, one for all but the last part, one for all but the first, and one after the look.
            5 => {}
            6 => a.made.from(0).wait_all(0, PARTS - 1, 1, epoch),
            7 => a.made.from(1).wait_all(1, PARTS - 1, 1, epoch),
            8 => {
                a.out.store(0, a.parts.load(0, PARTS * LEN));
                a.made.from(0).wait_all(0, PARTS, 1, epoch);
            }
            _ => a.made.from(0).wait_all(0, PARTS, 1, epoch),
        }
        a.out.store(0, a.parts.load(0, PARTS * LEN));
        a.taken.signal(0, epoch);
    });
    role("again", 1, |_| {
        // What another role reads and writes, without its signal.
        match c.bug {
            9 => a.parts.store(0, splat(0.0, LEN)),
            10 => a.out.store(0, splat(0.0, LEN)),
            _ => {}
        }
        a.taken.from(0).wait(0, epoch);
        a.out.store(0, a.out.load(0, LEN) + 1.0);
    });
}

family!(
    /// Rank 0 sends a row to rank 1, in four banks that a number in memory chooses. Rank 1 says that it has read.
    Banks, "banks", banks, BanksArgs
);

#[derive(KernelArgs)]
#[args(config = Banks)]
pub struct BanksArgs {
    /// A row.
    #[input]
    #[len(|_| LEN.into())]
    pub x: Ptr<f32>,
    /// Rank 0's.
    #[output]
    #[len(|_| LEN.into())]
    pub out: Ptr<f32>,
    /// How many launches there were.
    #[output]
    #[len(|_| 1)]
    pub turns: Ptr<u32>,
    /// Rows of four launches.
    #[len(|_| (4 * LEN).into())]
    pub inbox: Sym<f32>,
    /// That a row is there.
    #[len(|_| 4)]
    pub sent: Flags,
    /// That a row is read.
    #[len(|_| 4)]
    pub read: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

#[kernel]
pub fn banks(c: &Banks, a: &BanksArgs) {
    let epoch = a.epoch.begin();
    role("all", 1, |_| {
        let turn = a.turns.get(0);
        let bank = turn % 4;
        a.turns.set(0, turn + 1);
        if rank() == 0 {
            let mut parcel = send_to(Peers::rank(1));
            parcel.put(&a.inbox, bank * LEN, a.x.load(0, LEN));
            parcel.signal(&a.sent, bank, epoch);
            if c.bug == 0 {
                let _read = a.read.from(1).wait(bank, epoch);
            }
        } else {
            let got = a.sent.from(0).wait(bank, epoch);
            a.out.store(0, a.inbox.load(&got, bank * LEN, LEN));
            if c.bug == 0 {
                a.read.signal(Peers::rank(0), bank, epoch);
            }
        }
    });
}

impl Workload for Banks {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let row = Contents::of("x", &[turn.round as f32; LEN as usize]);
        let first = (turn.round == 0).then(|| Contents::of("turns", &[0u32]));
        std::iter::once(row).chain(first).collect()
    }

    fn expected(&self, _: Turn) -> Vec<Expected> {
        vec![]
    }
}
