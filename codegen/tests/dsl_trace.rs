//! Tracing without `#[kernel]`: what the DSL's functions and operators put into the IR.

use std::thread;

use half::{bf16, f16};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, Binding, KernelArgs, ParamSpec, TraceMeta, rt, trace, trace_args};
use peerwarp_codegen::ir::{ControlOp, Dtype, Kernel, MemoryOp, OpKind, Region, ValueOp, verify};

fn traced(body: impl FnOnce(&mut Binder)) -> Kernel {
    let kernel = trace(TraceMeta::new("test", 8, 32, 4), body).unwrap();
    verify(kernel.clone()).unwrap();
    kernel
}

/// A kernel of one role, with a buffer of each type that can be calculated with.
fn role_of(body: impl FnOnce(Buffers)) -> Kernel {
    traced(|p| {
        let buffers = Buffers { u: p.arg("u", 64), i: p.arg("i", 64), l: p.arg("l", 64), f: p.arg("f", 64) };
        role("r", 1, |_| body(buffers));
    })
}

struct Buffers {
    u: Ptr<u32>,
    i: Ptr<i32>,
    l: Ptr<u64>,
    f: Ptr<f32>,
}

macro_rules! snapshot {
    ($text:expr) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($text) })
    };
}

#[test]
fn a_whole_exchange() {
    let kernel = traced(|p| {
        let x: Ptr<u32> = p.arg("x", 256);
        let inbox: Sym<u32> = p.arg("inbox", 8 * 256);
        let flag: Flags = p.arg("flag", 8);
        let word: EpochWord = p.arg("epoch", 1);
        let out: Ptr<f32> = p.arg("out", 8 * 256);
        let scale: Val<f32> = p.arg("scale", 1);
        let epoch = word.begin();
        role("send", 2, |_| {
            let mut row = send_to(Peers::others());
            row.put(&inbox, rank() * 256, x.load(0, 256));
            row.signal(&flag, rank(), epoch);
        });
        role("recv", 2, |b| {
            let total = shared::<u32>("total", 4);
            total.store(0, splat(0u32, 4));
            b.split(2, |g| {
                let from = g.index();
                let got = flag.from(from).wait(from, epoch);
                let words = inbox.load(&got, from * 256, 256);
                let mut acc = var(words.cast::<f32>() * scale);
                acc += 1.0;
                out.store(from * 256, &acc);
                total.atomic_add(g.in_block() * 2, words.sum());
            });
            let t = total.get(0);
            x.set(b.index(), t.select_even());
        });
    });
    snapshot!(kernel.to_string());
}

/// A helper of an author's: an extension of `Val`.
trait SelectEven {
    fn select_even(self) -> Val<u32>;
}

impl SelectEven for Val<u32> {
    fn select_even(self) -> Val<u32> {
        (self & 1).eq_to(0).select(self, 0)
    }
}

/// The operation that defines a value, as the text form has it.
fn definition(kernel: &Kernel, store: usize) -> String {
    let text = kernel.to_string();
    let value = text.lines().filter_map(|l| l.trim().strip_prefix("store ")).nth(store).unwrap();
    let value = value.split(" <- ").nth(1).unwrap();
    let defined = format!("{value}: ");
    let found = text.lines().find_map(|l| l.trim().strip_prefix(&defined).map(str::to_owned));
    found.unwrap_or_else(|| value.to_owned())
}

#[test]
fn operators_take_every_mix_of_operands() {
    let kernel = role_of(|b| {
        let (v, w) = (b.u.get(1), b.u.get(2));
        let n = var(v);
        let (t, s) = (b.u.load(0, 8), b.u.load(8, 8));
        let acc = var(t);
        b.u.set(10, v - w);
        b.u.set(11, v - 3);
        b.u.set(12, 3 - v);
        b.u.set(13, v - &n);
        b.u.set(14, &n - v);
        b.u.set(15, 3 - &n);
        b.u.set(16, &n - &n);
        b.u.store(0, t - s);
        b.u.store(0, t - 3);
        b.u.store(0, 3 - t);
        b.u.store(0, v - t);
        b.u.store(0, t - v);
        b.u.store(0, &n - t);
        b.u.store(0, t - &n);
        b.u.store(0, t - &acc);
        b.u.store(0, &acc - t);
        b.u.store(0, 3 - &acc);
        b.u.store(0, v - &acc);
        b.u.store(0, acc - n);
    });
    let all: Vec<String> = (0..19).map(|i| definition(&kernel, i)).collect();
    snapshot!(all.join("\n"));
}

#[test]
fn every_operator_and_method() {
    let kernel = role_of(|b| {
        let (u, i, l, f) = (b.u.get(0), b.i.get(0), b.l.get(0), b.f.get(0));
        for v in [u + 7, u - 7, u * 7, u / 7, u % 7, u & 7, u | 7, u ^ 7, u << 7, u >> 7, !u] {
            b.u.set(1, v);
        }
        for v in [u.min(7), u.max(7), u.popcount(), l.trailing_zeros(), f.to_u32(), i.to_u32(), f.bitcast()] {
            b.u.set(1, v);
        }
        for v in [-i, i.abs(), u.to_i32(), i >> 1] {
            b.i.set(1, v);
        }
        for v in [bit(u), u.to_u64(), l << 3] {
            b.l.set(1, v);
        }
        for v in [-f, f.abs(), f.exp(), f.sqrt(), f.fma(2.0, f), u.to_f32(), f / 2.0, f.min(0.0)] {
            b.f.set(1, v);
        }
        for c in [u.lt(7), u.le(7), u.gt(7), u.ge(7), u.eq_to(7), u.ne_to(7), !u.lt(1), u.lt(1) & i.lt(2)] {
            b.u.set(1, c.select(u, 9));
        }
    });
    let all: Vec<String> = (0..41).map(|i| definition(&kernel, i)).collect();
    snapshot!(all.join("\n"));
}

#[test]
fn every_method_of_tiles() {
    let kernel = role_of(|b| {
        let (u, f) = (b.u.load(0, 8), b.f.load(0, 8));
        for t in [u.minimum(7), u.maximum(u + 1), u.popcount(), u.trailing_zeros(), !u, u % 7, arange(8) + 1]
        {
            b.u.store(0, t);
        }
        for t in [u.scan_sum(true), u.scan_sum(false), u.lt(7).select(u, 9), f.bitcast(), f.to_u32()] {
            b.u.store(0, t);
        }
        for t in [-f, f.abs(), f.exp(), f.sqrt(), f.fma(2.0, b.f.get(0)), f.maximum(0.0)] {
            b.f.store(0, t);
        }
        b.i.store(0, u.to_i32());
        b.l.store(0, u.to_u64());
        b.f.store(0, u.to_f32());
        for v in [u.sum(), u.max(), u.min(), u.or_all(), u.and_all()] {
            b.u.set(0, v);
        }
        let same = [u.lt(7), u.le(7), u.gt(7), u.ge(7), u.eq_to(u + 1), u.ne_to(7)];
        for c in same {
            b.u.set(0, c.any().cast::<u32>() + c.all().cast::<u32>());
        }
        b.u.store_where(0, u + 5, u.lt(7) & !u.lt(2));
        b.u.scatter(arange(8) * 2, u + 6, true);
        b.u.scatter(arange(8) * 2, u + 6, u.lt(7));
        b.u.store(0, b.u.load_where(60, arange(8).lt(4), 0));
        b.u.store(0, b.u.gather(arange(8) * 8, true, 0));
        b.u.set(3, b.u.atomic_add(0, 1) + b.u.atomic_max(1, 2) + b.u.atomic_or(2, 4));
    });
    snapshot!(kernel.to_string());
}

#[test]
fn narrow_floats_and_erased_buffers_convert() {
    let kernel = traced(|p| {
        let h: Ptr<f16> = p.arg("h", 8);
        let b: Ptr<bf16> = p.arg("b", 8);
        let q: Ptr<F8> = p.arg("q", 8);
        let any: AnyPtr = p.erased("any", 8, Dtype::Bf16);
        let same: AnyPtr = p.erased("same", 8, Dtype::F32);
        role("r", 1, |_| {
            b.store(0, h.load(0, 8).cast::<f32>().cast::<bf16>());
            q.store(0, (b.load(0, 8).cast::<f32>() * 2.0).cast::<F8>());
            h.set(0, f16::from_f32(1.5));
            any.store_f32(0, same.load_f32(0, 8));
            same.store_f32(0, any.load_f32(0, 8) + any.get_f32(3));
        });
    });
    snapshot!(kernel.to_string());
}

#[test]
fn what_does_nothing_is_left_out() {
    let kernel = role_of(|b| {
        let (u, f) = (b.u.get(0), b.f.get(0));
        let t = b.u.load(0, 8);
        let yes = u.lt(4);
        let always = 1u32.val().eq_to(1);
        for v in [u + 0, 0 + u, u - 0, u * 1, 1 * u, u / 1, u | 0, u ^ 0, u << 0, u >> 0, u & u, u.min(u)] {
            b.u.set(1, v);
        }
        b.u.set(1, (yes & always).select(u, u) + (always & yes).cast::<u32>());
        b.f.set(1, f * 1.0 / 1.0);
        b.u.store(0, t * 1 + 0);
        b.u.set(1, u.to_u32());
    });
    let text = kernel.to_string();
    let operations = text.lines().filter(|l| l.contains(" = ") && !l.contains("load")).count();
    assert_eq!(operations, 3, "u < 4, its cast and one sum:\n{text}");
    let kernel = role_of(|b| b.f.set(1, b.f.get(0) + 0.0));
    assert!(kernel.to_string().contains(" + 0"), "-0.0 + 0.0 is 0.0:\n{kernel}");
}

#[test]
fn equal_computations_are_done_once() {
    let kernel = role_of(|b| {
        let u = b.u.get(0);
        for i in 0..4u32 {
            b.u.set(u * 8 + i, rank() + ranks());
        }
    });
    let count = |what: &str| kernel.to_string().matches(what).count();
    assert_eq!((count(" * 8"), count("rank\n"), count("%rank + 8")), (1, 1, 1), "{kernel}");
}

#[test]
fn a_tile_is_not_reused_across_a_split() {
    let kernel = traced(|p| {
        let x: Ptr<u32> = p.arg("x", 64);
        role("r", 1, |b| {
            x.store(0, splat(rank(), 32));
            b.split(1, |_| x.store(0, splat(rank(), 32)));
            x.store(32, splat(rank(), 32));
        });
    });
    assert_eq!(kernel.to_string().matches("splat").count(), 2, "{kernel}");
}

#[test]
fn what_nothing_uses_is_dropped_but_loads_stay() {
    let kernel = role_of(|b| {
        let n = b.u.get(0);
        let unused = n * 3 + 1;
        let _ = arange(8).lt(unused);
        let _ = rank() + 1;
        let v = var(n);
        let _ = &v + 1;
    });
    assert!(kernel.prologue.ops.is_empty(), "{kernel}");
    let kinds: Vec<_> = kernel.roles[0].body.ops.iter().map(|&op| &kernel.op(op).kind).collect();
    let [
        OpKind::Value(ValueOp::Const { .. }),
        OpKind::Memory(MemoryOp::Load { .. }),
        OpKind::Control(ControlOp::VarDecl { .. }),
    ] = kinds[..]
    else {
        panic!("{kernel}")
    };
}

#[test]
fn a_target_computed_before_the_parcel_is_kept() {
    let kernel = traced(|p| {
        let x: Ptr<u64> = p.arg("x", 1);
        let inbox: Sym<u32> = p.arg("inbox", 8);
        let flag: Flags = p.arg("flag", 8);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("r", 1, |_| {
            let mut parcel = send_to(Peers::mask(x.get(0) & 0xff));
            parcel.put_value(&inbox, rank(), 1u32);
            parcel.signal(&flag, rank(), epoch);
        });
    });
    assert!(kernel.to_string().contains(" & 255"), "{kernel}");
}

#[test]
fn groups_are_numbered_over_the_blocks_of_their_role() {
    let kernel = traced(|p| {
        let x: Ptr<u32> = p.arg("x", 64);
        role("r", 3, |b| {
            assert_eq!((b.count(), b.blocks(), b.warps(), b.lanes()), (3, 3, 4, 128));
            x.set(0, b.block() + b.in_block());
            b.split(1, |g| {
                assert_eq!((g.count(), g.blocks(), g.warps(), g.lanes()), (12, 3, 1, 32));
                // The block's own number is still to be had.
                x.set(b.index(), g.block() * 4 + g.in_block());
            });
        });
    });
    snapshot!(kernel.to_string());
}

#[test]
fn shared_arrays_have_a_copy_for_each_group_that_declares_them() {
    let kernel = traced(|_| {
        role("r", 1, |b| {
            shared::<u32>("block", 8).set(0, 1u32);
            b.split(2, |_| shared::<f32>("group", 8).set(0, 1.0));
            b.split(1, |_| shared::<u64>("warp", 8).set(0, 1u64));
        });
        role("other", 1, |_| shared::<u32>("block", 8).set(0, 1u32));
    });
    let copies: Vec<_> = kernel.shared.iter().map(|s| (s.name.as_str(), s.copies)).collect();
    assert_eq!(copies, [("block", 1), ("group", 2), ("warp", 4), ("block", 1)]);
}

#[test]
fn every_operation_has_the_place_of_the_author() {
    let kernel = traced(|p| {
        let x: Ptr<u32> = p.arg("x", 64);
        let inbox: Sym<u32> = p.arg("inbox", 64);
        let flag: Flags = p.arg("flag", 8);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("r", 1, |b| {
            let mut n = var(0u32);
            n += x.get(b.index()).min(3) << 2u32;
            n.set(bit(&n).popcount());
            let mut parcel = send_to(Peers::others());
            parcel.put_where(&inbox, 0, arange(8) % 3, arange(8).lt(&n));
            parcel.signal(&flag, rank(), epoch);
            let all = flag.wait_all(0, 8, 1, epoch);
            let t = inbox.gather(&all, arange(8), true, 0) + inbox.load_where(&all, 0, arange(8).lt(4), 1);
            x.store(0, t.scan_sum(true).cast::<f32>().fma(2.0, 1.0).cast::<u32>());
            x.set(epoch.parity(), inbox.get(&all, 3).bitcast::<f32>().to_u32());
        });
    });
    for op in &kernel.ops {
        assert!(op.loc.file.ends_with("dsl_trace.rs"), "{:?} at {:?}", op.kind, op.loc);
    }
    for loc in kernel.parcels.iter().map(|p| p.loc).chain(kernel.receipts.iter().map(|r| r.loc)) {
        assert!(loc.file.ends_with("dsl_trace.rs"), "{loc:?}");
    }
}

#[test]
fn traces_nest() {
    let outer = role_of(|b| {
        let n = b.u.get(0);
        let inner = role_of(|b| b.u.set(1, b.u.get(3) * 3));
        assert_eq!(inner.to_string().matches(" * 3").count(), 1);
        b.u.set(2, n + 2);
    });
    let text = outer.to_string();
    assert!(text.contains(" + 2") && !text.contains(" * 3"), "{text}");
    assert!(!rt::active());
}

#[test]
fn threads_trace_at_the_same_time() {
    let texts: Vec<String> = thread::scope(|s| {
        let threads: Vec<_> = (0..8u32)
            .map(|i| {
                s.spawn(move || {
                    let kernel = role_of(|b| {
                        for k in 0..50u32 {
                            b.u.set(k, b.u.get(k) + (7_000_000 + i));
                        }
                    });
                    kernel.to_string().replace(&(7_000_000 + i).to_string(), "N")
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(texts[0].contains(" + N") && texts.iter().all(|t| *t == texts[0]));
}

#[test]
fn a_panic_that_passes_through_leaves_no_trace() {
    // Not caught by `trace` alone: a payload of its own, from a destructor's point of view.
    let caught = std::panic::catch_unwind(|| role_of(|b| b.u.set(64, 0u32)));
    assert!(caught.is_err());
    assert!(!rt::active());
}

#[test]
#[should_panic(expected = "a device operation outside a kernel")]
fn a_value_after_its_trace() {
    let mut kept = None;
    role_of(|b| kept = Some(b.u.get(0)));
    let _ = kept.unwrap() + 1;
}

/// Parameters as `#[derive(KernelArgs)]` would bind them, written by hand.
struct Hand {
    x: Ptr<u32>,
    any: AnySym,
    n: Val<u32>,
}

impl KernelArgs for Hand {
    type Config = u64;
    fn params(config: &u64) -> Vec<ParamSpec> {
        vec![
            ParamSpec::of::<Ptr<u32>>("x", *config, "what comes out"),
            ParamSpec::erased::<AnySym>("any", 2 * config, Dtype::Fp8, ""),
            ParamSpec::of::<Val<u32>>("n", 1, ""),
        ]
    }
    fn bind(_: &u64, binder: &mut Binder) -> Hand {
        Hand { x: binder.next(), any: binder.next(), n: binder.next() }
    }
}

#[test]
fn parameters_come_from_the_config() {
    let kernel = trace_args::<Hand>(TraceMeta::new("test", 2, 64, 1), &32, |config, a| {
        assert_eq!((a.x.len(), a.any.len(), a.any.dtype()), (*config, 64, Dtype::Fp8));
        role("r", 1, |_| a.x.set(0, a.n));
    })
    .unwrap();
    let doc: Vec<_> = kernel.params.iter().map(|p| (p.name.as_str(), p.len, p.doc.as_str())).collect();
    assert_eq!(doc, [("x", 32, "what comes out"), ("any", 64, ""), ("n", 1, "")]);
    assert!(kernel.to_string().contains("store @x[0] <- %n"), "{kernel}");
}

#[test]
fn an_index_into_a_huge_buffer_is_wide() {
    let kernel = traced(|p| {
        let x: Ptr<u32> = p.arg("x", 1 << 33);
        role("r", 1, |b| {
            x.set(3, 0u32);
            x.set(b.index().to_u64() * 1024, 0u32);
            x.set(1u64 << 32, 0u32);
        });
    });
    let wide = |r: &Region| {
        r.ops.iter().all(|&op| match kernel.op(op).kind {
            OpKind::Memory(MemoryOp::Store { index, .. }) => kernel.ty(index).dtype == Dtype::U64,
            _ => true,
        })
    };
    assert!(wide(&kernel.roles[0].body), "{kernel}");
}

/// What a caller lends to a launch, written by hand.
struct Lent(Ptr<u32>, Ptr<u32>);

impl KernelArgs for Lent {
    type Config = ();
    fn params((): &()) -> Vec<ParamSpec> {
        vec![
            ParamSpec::of::<Ptr<u32>>("x", 64, "").bound(Binding::Input),
            ParamSpec::of::<Ptr<u32>>("out", 64, "").bound(Binding::Output),
        ]
    }
    fn bind((): &(), binder: &mut Binder) -> Lent {
        Lent(binder.next(), binder.next())
    }
}

/// What a caller lends to all ranks.
struct Pushed(Window<u32>, Flags, EpochWord);

impl KernelArgs for Pushed {
    type Config = Binding;
    fn params(binding: &Binding) -> Vec<ParamSpec> {
        vec![
            ParamSpec::of::<Window<u32>>("x", 64, "").bound(*binding),
            ParamSpec::of::<Flags>("sent", 2, ""),
            ParamSpec::of::<EpochWord>("epoch", 1, ""),
        ]
    }
    fn bind(_: &Binding, binder: &mut Binder) -> Pushed {
        Pushed(binder.next(), binder.next(), binder.next())
    }
}

#[test]
fn inputs_are_not_written() {
    let lent = |body: fn(&Lent)| {
        let meta = TraceMeta::new("test", 2, 32, 1);
        trace_args::<Lent>(meta, &(), |(), a| role("r", 1, |_| body(a))).err().map(|e| e.message)
    };
    let refused = Some("`x` is an input, and is written".to_owned());
    assert_eq!(lent(|a| a.1.set(0, a.0.get(0))), None);
    assert_eq!(lent(|a| a.0.set(0, a.0.get(0))), refused);
    assert_eq!(lent(|a| a.0.store(0, arange(32))), refused);
    assert_eq!(lent(|a| a.0.scatter(arange(32), arange(32), true)), refused);
    // Nor by peers.
    let put = |binding| {
        let meta = TraceMeta::new("test", 2, 32, 1);
        trace_args::<Pushed>(meta, &binding, |_, a| {
            let epoch = a.2.begin();
            role("r", 1, |_| {
                let mut parcel = send_to(Peers::all());
                parcel.put(&a.0, 0, arange(32));
                parcel.signal(&a.1, rank(), epoch);
                let _all = a.1.wait_all(0, 2, 1, epoch);
            });
        })
        .err()
        .map(|e| e.message)
    };
    assert_eq!(put(Binding::Input), refused);
    assert_eq!(put(Binding::InOut), None);
}
