//! The error for each mistake that tracing finds without `#[kernel]`.
//!
//! The snapshots show, for every place in an error, the author's source from that place on: they pin that an error
//! points at the right expression, and do not change when lines move.

use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel, Loc};

/// The parameters of every case.
struct Args {
    x: Ptr<u32>,
    y: Ptr<f32>,
    half: Ptr<bf16>,
    big: Ptr<u32>,
    inbox: Sym<u32>,
    other: Sym<u32>,
    flag: Flags,
    ack: Flags,
    word: EpochWord,
}

fn run(body: impl FnOnce(&Args)) -> Result<Kernel, TraceError> {
    trace(TraceMeta::new("test", 8, 32, 6), |p| {
        let args = Args {
            x: p.arg("x", 256),
            y: p.arg("y", 64),
            half: p.arg("half", 64),
            big: p.arg("big", 1 << 33),
            inbox: p.arg("inbox", 1024),
            other: p.arg("other", 1024),
            flag: p.arg("flag", 8),
            ack: p.arg("ack", 8),
            word: p.arg("epoch", 1),
        };
        body(&args);
    })
}

/// For what is made only to see that it cannot be.
fn unused<T>(_: T) {}

/// The source from a place on.
fn source(loc: Loc) -> String {
    assert!(loc.file.ends_with("dsl_errors.rs"), "{loc:?} is not the author's");
    let line = include_str!("dsl_errors.rs").lines().nth(loc.line as usize - 1).unwrap();
    line[loc.col as usize - 1..].to_owned()
}

fn render(error: &TraceError) -> String {
    let mut text = format!("{}\n  at {}\n", error.message, source(error.loc));
    for (loc, what) in &error.notes {
        text += &format!("  note: {what}: {}\n", source(*loc));
    }
    if !error.help.is_empty() {
        text += &format!("  help: {}\n", error.help);
    }
    text
}

/// A snapshot without a copy of the test.
macro_rules! snapshot {
    ($text:expr) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($text) })
    };
}

/// A kernel that must fail, with what is wrong in it.
type Case = (&'static str, fn(&Args));

/// The errors of several kernels.
fn errors<const N: usize>(cases: [Case; N]) -> String {
    cases
        .map(|(name, case)| {
            let error = run(case).expect_err(name);
            format!("# {name}\n{}", render(&error))
        })
        .join("\n")
}

#[test]
fn protocol() {
    snapshot!(errors([
        ("empty parcel", |a| {
            let epoch = a.word.begin();
            role("send", 1, |_| {
                let parcel = send_to(Peers::all());
                parcel.signal(&a.flag, rank(), epoch);
            });
        }),
        ("never signalled", |a| {
            role("send", 1, |_| {
                let mut parcel = send_to(Peers::all());
                parcel.put(&a.inbox, 0, arange(32));
            });
        }),
        ("wrong receipt", |a| {
            let epoch = a.word.begin();
            role("send", 1, |_| {
                let mut data = send_to(Peers::all());
                data.put(&a.inbox, 0, arange(32));
                data.signal(&a.flag, rank(), epoch);
                let mut done = send_to(Peers::all());
                done.put(&a.other, 0, arange(32));
                done.signal(&a.ack, rank(), epoch);
            });
            role("recv", 1, |_| {
                let got = a.ack.from(0).wait(0, epoch);
                a.x.store(0, a.inbox.load(&got, 0, 32));
            });
        }),
        ("receipt of a flag that carries nothing to that inbox", |a| {
            let epoch = a.word.begin();
            role("send", 1, |_| {
                let mut data = send_to(Peers::all());
                data.put(&a.inbox, 0, arange(32));
                data.signal(&a.flag, rank(), epoch);
            });
            role("recv", 1, |_| {
                let got = a.flag.wait_all(0, 8, 1, epoch);
                a.x.set(0, a.other.get(&got, 3));
            });
        }),
        ("receipt used in another role", |a| {
            let epoch = a.word.begin();
            let mut kept = None;
            role("wait", 1, |_| kept = Some(a.flag.from(0).wait(0, epoch)));
            role("read", 1, |_| a.x.store(0, a.inbox.load(&kept.unwrap(), 0, 32)));
        }),
        ("parcel of another role", |a| {
            let epoch = a.word.begin();
            let mut kept = None;
            role("open", 1, |_| kept = Some(send_to(Peers::rank(1))));
            role("send", 1, |_| kept.take().unwrap().signal(&a.flag, 0, epoch));
        }),
        ("parcel of the block in a split", |a| {
            role("send", 1, |b| {
                let mut parcel = send_to(Peers::all());
                b.split(1, |_| parcel.put(&a.inbox, 0, arange(32)));
            });
        }),
        ("no such rank", |_| role("send", 1, |_| unused(send_to(Peers::rank(8))))),
        ("no such rank in a mask", |_| role("send", 1, |_| unused(send_to(Peers::mask(0x100u64))))),
        ("wait for no such rank", |a| {
            let epoch = a.word.begin();
            role("recv", 1, |_| unused(a.flag.from(9).wait(0, epoch)));
        }),
        ("no flags of each rank", |a| {
            let epoch = a.word.begin();
            role("recv", 1, |_| unused(a.flag.wait_all(0, 8, 0, epoch)));
        }),
        ("more flags than a mask has bits", |a| {
            let epoch = a.word.begin();
            role("recv", 1, |_| unused(a.flag.wait_some(0, 65, 0xffu64, 1, epoch)));
        }),
        ("parcel outside a role", |_| unused(send_to(Peers::all()))),
        ("wait outside a role", |a| {
            let epoch = a.word.begin();
            let _ = a.flag.from(0).wait(0, epoch);
        }),
        ("wait for all outside a role", |a| {
            let epoch = a.word.begin();
            let _ = a.flag.wait_all(0, 8, 1, epoch);
        }),
        ("epoch twice", |a| {
            let _ = a.word.peek();
            let _ = a.word.begin();
        }),
        ("epoch in a role", |a| role("send", 1, |_| unused(a.word.begin()))),
    ]));
}

#[test]
fn memory() {
    snapshot!(errors([
        ("element out of bounds", |a| role("r", 1, |_| unused(a.x.get(256)))),
        ("tile out of bounds", |a| role("r", 1, |_| unused(a.x.load(200, 100)))),
        ("tile longer than the buffer", |a| role("r", 1, |b| unused(a.y.load(b.index(), 65)))),
        ("store out of bounds", |a| role("r", 1, |_| a.x.store(225u64, arange(32)))),
        ("put out of bounds", |a| role("r", 1, |_| send_to(Peers::all()).put(&a.inbox, 1000, arange(32)))),
        ("signal out of bounds", |a| {
            let epoch = a.word.begin();
            role("r", 1, |_| {
                let mut parcel = send_to(Peers::all());
                parcel.put_value(&a.inbox, 0, 1u32);
                parcel.signal(&a.flag, 8, epoch);
            });
        }),
        ("wait out of bounds", |a| {
            let epoch = a.word.begin();
            role("r", 1, |_| unused(a.flag.wait_all(1, 8, 1, epoch)));
        }),
        ("negative index", |a| role("r", 1, |_| unused(a.x.get(-1)))),
        ("narrow index", |a| role("r", 1, |b| unused(a.big.get(b.index() * 1024)))),
        ("load outside a role", |a| unused(a.x.get(0))),
        ("store outside a role", |a| a.x.set(0, 1u32)),
        ("shared outside a role", |_| unused(shared::<u32>("base", 8))),
        ("shared without elements", |_| role("r", 1, |_| unused(shared::<u32>("base", 0)))),
        ("shared twice", |_| {
            role("r", 1, |_| (0..2).for_each(|_| unused(shared::<u32>("base", 8))));
        }),
        ("shared with a bad name", |_| role("r", 1, |_| unused(shared::<u32>("my base", 8)))),
        ("shared of bool", |_| role("r", 1, |_| unused(shared::<bool>("base", 8)))),
        ("shared of another role", |_| {
            let mut kept = None;
            role("one", 1, |_| kept = Some(shared::<u32>("base", 8)));
            role("two", 1, |_| unused(kept.unwrap().get(0)));
        }),
        ("shared of a split", |_| {
            role("r", 1, |b| {
                let mut kept = None;
                b.split(2, |_| kept = Some(shared::<u32>("base", 8)));
                kept.unwrap().set(0, 1u32);
            });
        }),
    ]));
}

/// Indices that say which elements.
#[test]
fn parts_of_tiles() {
    snapshot!(errors([
        ("a tile of another length than the range's", |a| {
            role("r", 1, |b| unused(a.x.load(tiles(200, 64).tile(b.index()).at(), 32)));
        }),
        ("a mask of another length", |a| role("r", 1, |_| unused(a.x.load(0.only(arange(16).lt(4)), 32)))),
        ("a store of another length than its mask", |a| {
            role("r", 1, |_| a.x.store(0.only(arange(16).lt(4)), arange(32)));
        }),
        ("one element under a mask", |a| role("r", 1, |b| a.x.set(0.only(b.index().lt(1)), 1u32))),
        ("two ranges in one index", |a| {
            role("r", 1, |b| {
                let t = tiles(200, 64).tile(b.index());
                unused(a.x.load(t.at() + t.at(), 64));
            });
        }),
        ("tiles of no elements", |a| role("r", 1, |b| unused((tiles(200, 0), a.x.get(b.index()))))),
        ("tiles that are too long", |_| role("r", 1, |b| unused(b.tiles(200, 1 << 20)))),
        ("choosing between types", |_| {
            role("r", 1, |b| {
                let [a, b32] = [Dtype::Bf16, Dtype::F32].map(|d| AnyTile::rounded(splat(0f32, 32), d));
                unused(b.index().lt(1).select(a, b32));
            });
        }),
    ]));
}

/// What moves in whole packets, in bulk or with its epoch.
#[test]
fn parts_of_what_is_sent() {
    fn one(body: impl FnOnce(Packets<f32>, (Ll<u32>, Epoch), TileRange)) -> String {
        let made = trace(TraceMeta::new("test", 8, 32, 6), |p| {
            let (packets, ll) = (p.arg("packets", 1024), p.arg("ll", 1024));
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("r", 1, |b| body(packets, (ll, epoch), tiles(200, 64).tile(b.index())));
        });
        render(&made.unwrap_err())
    }
    let cases = [
        one(|packets, _, _| unused(packets.take(0.only(arange(64).lt(4)), 64, 1))),
        one(|packets, _, t| packets.send(Peers::all(), t.at().only(arange(64).lt(4)), splat(0f32, 64))),
        one(|packets, _, t| unused(packets.take_each([(t.at(), 1u32), (t.first().index(), 2)], 64, 3u64))),
        one(|_, (ll, epoch), t| ll.send(Peers::all(), t.at().only(arange(64).lt(4)), arange(64), epoch)),
        one(|packets, _, t| unused(packets.take(t.at(), 32, 1))),
        one(|packets, _, _| unused(packets.take(tiles(200, 6).tile(0).at(), 6, 1))),
    ];
    snapshot!(cases.join("\n"));
}

#[test]
fn values() {
    snapshot!(errors([
        ("value of another role", |a| {
            let mut kept = None;
            role("one", 1, |_| kept = Some(a.x.get(0)));
            role("two", 1, |_| a.x.set(1, kept.unwrap()));
        }),
        ("value of a role after it", |a| {
            let mut kept = None;
            role("one", 1, |_| kept = Some(a.x.get(0)));
            let _ = kept.unwrap() + 1;
        }),
        ("value of a split", |a| {
            role("r", 1, |b| {
                let mut kept = None;
                b.split(2, |g| kept = Some(a.x.get(g.index())));
                a.x.set(0, kept.unwrap());
            });
        }),
        ("tile of the block in a split", |a| {
            role("r", 1, |b| {
                let row = a.x.load(0, 64);
                b.split(2, |_| a.x.store(0, row + 1));
            });
        }),
        ("tile variable of the block in a split", |a| {
            role("r", 1, |b| {
                let row = var(a.x.load(0, 64));
                b.split(2, |_| a.x.store(0, &row));
            });
        }),
        ("variable of the block assigned in a split", |a| {
            role("r", 1, |b| {
                let mut n = var(0u32);
                b.split(2, |g| n += a.x.get(g.index()));
            });
        }),
        ("variable of another role", |_| {
            let mut kept = None;
            role("one", 1, |_| kept = Some(var(0u32)));
            role("two", 1, |_| kept.as_mut().unwrap().set(1));
        }),
        ("variable before the roles", |_| unused(var(0u32))),
        ("group of another role", |_| {
            let mut kept = None;
            role("one", 1, |b| kept = Some(b));
            role("two", 1, |_| unused(kept.unwrap().index()));
        }),
        ("lengths", |a| role("r", 1, |_| unused(a.y.load(0, 32) * a.y.load(0, 48)))),
        ("lengths of a mask", |a| {
            role("r", 1, |_| a.x.store_where(0, arange(32), arange(16).lt(4)));
        }),
        ("lengths of a scatter", |a| role("r", 1, |_| a.x.scatter(arange(8), arange(16), true))),
        ("length of a tile variable", |a| {
            role("r", 1, |_| {
                let mut row = var(a.x.load(0, 64));
                row.set(arange(32));
            });
        }),
        ("empty tile", |a| role("r", 1, |_| unused(a.y.load(0, 0)))),
        ("empty arange", |_| role("r", 1, |_| unused(arange(0)))),
        ("huge tile", |a| role("r", 1, |_| unused(a.big.load(0, 100_000)))),
        ("tile before the roles", |_| unused(arange(32))),
        ("cast to bool", |a| role("r", 1, |_| unused(a.x.get(0).cast::<bool>()))),
        ("cast of bf16 to u32", |a| role("r", 1, |_| unused(a.half.load(0, 8).cast::<u32>()))),
        ("division by zero", |a| role("r", 1, |_| unused(a.x.get(0) / 0))),
        ("remainder by zero", |a| role("r", 1, |_| unused(a.x.load(0, 32) % 0))),
        ("shift too far", |a| role("r", 1, |_| unused(a.x.get(0) << 32))),
        ("bit too high", |_| role("r", 1, |_| unused(bit(64)))),
        ("range with a step of zero", |a| role("r", 1, |b| unused(b.strided(a.x.get(0)).step_by(0)))),
    ]));
}

#[test]
fn roles_and_splits() {
    snapshot!(errors([
        ("no roles", |_| ()),
        ("nested role", |_| role("outer", 1, |_| role("inner", 1, |_| ()))),
        ("role in a split", |_| role("outer", 1, |b| b.split(1, |_| role("inner", 1, |_| ())))),
        ("no blocks", |_| role("send", 0, |_| ())),
        ("bad name", |_| role("send rows", 1, |_| ())),
        ("empty name", |_| role("", 1, |_| ())),
        ("duplicate name", |_| (0..2).for_each(|_| role("send", 1, |_| ()))),
        ("nested split", |_| role("r", 1, |b| b.split(2, |g| g.split(1, |_| ())))),
        ("split that does not divide", |_| role("r", 1, |b| b.split(4, |_| ()))),
        ("split into nothing", |_| role("r", 1, |b| b.split(0, |_| ()))),
        ("goes on as no role", |_| role("send", 1, |b| b.goes_on_as("recieve"))),
        ("goes on as an earlier role", |_| {
            role("recv", 1, |_| ());
            role("send", 1, |b| b.goes_on_as("recv"));
        }),
        ("goes on twice", |_| {
            role("send", 1, |b| {
                b.goes_on_as("recv");
                b.goes_on_as("recv");
            });
        }),
        ("goes on and on", |_| {
            role("send", 1, |b| b.goes_on_as("recv"));
            role("recv", 1, |b| b.goes_on_as("last"));
        }),
        ("goes on in a split", |_| role("send", 1, |b| b.split(1, |_| b.goes_on_as("recv")))),
        ("does something after it goes on", |a| {
            role("send", 1, |b| {
                b.goes_on_as("recv");
                a.x.set(0, 1u32);
            });
        }),
    ]));
}

#[test]
fn other_kernels() {
    let mut kept = None;
    let outer = run(|a| {
        role("r", 1, |_| {
            let n = a.x.get(0);
            let inner = run(|b| role("r", 1, |_| b.x.set(0, n))).unwrap_err();
            kept = Some(render(&inner));
            let inner = run(|b| role("r", 1, |_| unused(b.x.get(0) + a.x.get(0)))).unwrap_err();
            kept.as_mut().unwrap().push_str(&render(&inner));
            let inner = run(|_| role("r", 1, |_| unused(send_to(Peers::rank(n))))).unwrap_err();
            kept.as_mut().unwrap().push_str(&render(&inner));
            a.x.set(1, n + 1);
        });
    });
    outer.unwrap();
    snapshot!(kept.unwrap());
}

#[test]
fn panics_of_the_author_become_errors() {
    let error = run(|_| {
        role("r", 1, |_| {
            let table = [1, 2, 3];
            let at = table.len();
            let _ = table[at];
        });
    })
    .unwrap_err();
    snapshot!(render(&error));
    // And the thread can trace again.
    run(|a| role("r", 1, |_| a.x.set(0, 1u32))).unwrap();
}

#[test]
fn parameters() {
    let failed = |declare: fn(&mut Binder)| {
        let error = trace(TraceMeta::new("test", 8, 32, 4), declare).unwrap_err();
        assert_eq!(error.loc.line, line!() - 1, "{error}");
        format!("{}\n  help: {}", error.message, error.help)
    };
    snapshot!(
        [
            failed(|p| unused((p.arg::<Ptr<u32>>("x", 1), p.arg::<Ptr<u32>>("x", 1)))),
            failed(|p| unused(p.arg::<Ptr<u32>>("x y", 1))),
            failed(|p| unused(p.arg::<Sym<u32>>("x", 0))),
            failed(|p| unused(p.arg::<Ptr<bool>>("x", 1))),
            failed(|p| unused(p.erased::<AnyPtr>("x", 1, Dtype::Bool))),
            failed(|p| unused(p.next::<Flags>())),
            failed(|p| {
                p.declare(vec![peerwarp_codegen::dsl::ParamSpec::of::<Ptr<u32>>("x", 1, "")]);
                unused(p.next::<Sym<u32>>());
            }),
        ]
        .join("\n")
    );
}

#[test]
fn shapes_of_the_launch() {
    let failed = |ranks, warp_size, block_warps| {
        let error = trace(TraceMeta::new("test", ranks, warp_size, block_warps), |_| ()).unwrap_err();
        format!("{}\n  help: {}", error.message, error.help)
    };
    snapshot!(
        [failed(0, 32, 4), failed(65, 32, 4), failed(8, 16, 4), failed(8, 32, 0), failed(8, 64, 17)]
            .join("\n")
    );
}

#[test]
fn an_error_displays_places_and_advice() {
    let error = run(|_| role("r", 1, |b| b.split(2, |g| g.split(1, |_| ())))).unwrap_err();
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let place = format!("tests/dsl_errors.rs:{}:", line!() - 3);
    assert!(lines[0].contains(&place) && lines[0].ends_with(": a split inside a split"), "{text}");
    assert!(lines[1].starts_with("  note: ") && lines[1].contains(&place), "{text}");
    assert!(lines[2].starts_with("  help: split the block once"), "{text}");
}
