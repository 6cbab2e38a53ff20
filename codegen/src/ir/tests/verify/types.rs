use insta::assert_snapshot;

use super::*;

fn of(s: &mut Sample, ty: Type) -> ValueId {
    let scalar = match ty.dtype {
        Dtype::Bool => s.constant(Const::Bool(true)),
        Dtype::I32 => s.constant(Const::I32(1)),
        Dtype::U32 => s.constant(Const::U32(1)),
        Dtype::U64 => s.constant(Const::U64(1)),
        Dtype::F32 => s.constant(Const::F32(0)),
        Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => {
            let a = s.constant(Const::F32(0));
            s.value("", Type::scalar(ty.dtype), |out| ValueOp::Cast { out, a })
        }
    };
    match ty.len {
        None => scalar,
        Some(_) => s.value("", ty, |out| ValueOp::Splat { out, a: scalar }),
    }
}

/// Problems of one operation on operands of these types with a result of that type.
fn one(out: Type, operands: &[Type], make: impl FnOnce(ValueId, &[ValueId]) -> OpKind) -> Vec<Problem> {
    problems(&with_role(|s, _| {
        let v: Vec<ValueId> = operands.iter().map(|&t| of(s, t)).collect();
        s.value("out", out, |o| make(o, &v));
    }))
}

fn binary(op: BinaryOp, dtype: Dtype) -> bool {
    let t = tile(dtype);
    one(t, &[t, t], |out, v| OpKind::Value(ValueOp::Binary { out, op, a: v[0], b: v[1] })).is_empty()
}

#[test]
fn which_dtypes_binary_operations_take() {
    use Dtype::*;
    let allowed = |op| Dtype::ALL.into_iter().filter(|&d| binary(op, d)).collect::<Vec<_>>();
    for op in [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Min, BinaryOp::Max] {
        assert_eq!(allowed(op), [I32, U32, U64, F32], "{}", op.symbol());
    }
    for op in [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor] {
        assert_eq!(allowed(op), [Bool, I32, U32, U64], "{}", op.symbol());
    }
    for op in [BinaryOp::Rem, BinaryOp::Shl, BinaryOp::Shr] {
        assert_eq!(allowed(op), [I32, U32, U64], "{}", op.symbol());
    }
}

#[test]
fn which_dtypes_unary_operations_take() {
    use Dtype::*;
    let allowed = |op, counts: bool| {
        let ok = |&d: &Dtype| {
            let out = tile(if counts { U32 } else { d });
            one(out, &[tile(d)], |out, v| OpKind::Value(ValueOp::Unary { out, op, a: v[0] })).is_empty()
        };
        Dtype::ALL.into_iter().filter(ok).collect::<Vec<_>>()
    };
    assert_eq!(allowed(UnaryOp::Neg, false), [I32, F32]);
    assert_eq!(allowed(UnaryOp::Abs, false), [I32, F32]);
    assert_eq!(allowed(UnaryOp::Not, false), [Bool, I32, U32, U64]);
    assert_eq!(allowed(UnaryOp::Exp, false), [F32]);
    assert_eq!(allowed(UnaryOp::Sqrt, false), [F32]);
    assert_eq!(allowed(UnaryOp::Tanh, false), [F32]);
    for op in [UnaryOp::Rsqrt, UnaryOp::Log, UnaryOp::Erf, UnaryOp::Sin, UnaryOp::Cos] {
        assert_eq!(allowed(op, false), [F32]);
    }
    assert_eq!(allowed(UnaryOp::PopCount, true), [I32, U32, U64]);
    assert_eq!(allowed(UnaryOp::TrailingZeros, true), [I32, U32, U64]);
    assert_eq!(allowed(UnaryOp::PopCount, false), [U32], "the count is u32 whatever was counted");
}

#[test]
fn which_dtypes_compare_reduce_and_scan() {
    use Dtype::*;
    let compare = |op| {
        let ok = |&d: &Dtype| {
            let t = tile(d);
            one(tile(Bool), &[t, t], |out, v| OpKind::Value(ValueOp::Compare { out, op, a: v[0], b: v[1] }))
                .is_empty()
        };
        Dtype::ALL.into_iter().filter(ok).collect::<Vec<_>>()
    };
    assert_eq!(compare(CompareOp::Eq), [Bool, I32, U32, U64, F32]);
    assert_eq!(compare(CompareOp::Lt), [I32, U32, U64, F32]);
    let reduce = |op| {
        let ok = |&d: &Dtype| {
            let scalar = Type::scalar(d);
            let reduced =
                one(scalar, &[tile(d)], |out, v| OpKind::Value(ValueOp::Reduce { out, op, a: v[0] }))
                    .is_empty();
            let scan =
                |out, v: &[ValueId]| OpKind::Value(ValueOp::Scan { out, op, a: v[0], exclusive: false });
            assert_eq!(reduced, one(tile(d), &[tile(d)], scan).is_empty());
            reduced
        };
        Dtype::ALL.into_iter().filter(ok).collect::<Vec<_>>()
    };
    assert_eq!(reduce(ReduceOp::Sum), [I32, U32, U64, F32]);
    assert_eq!(reduce(ReduceOp::Max), [I32, U32, U64, F32]);
    assert_eq!(reduce(ReduceOp::Or), [Bool, I32, U32, U64]);
}

#[test]
fn which_casts_there_are() {
    use Dtype::*;
    let targets = |from: Dtype| {
        let ok = |&to: &Dtype| {
            one(tile(to), &[tile(from)], |out, v| OpKind::Value(ValueOp::Cast { out, a: v[0] })).is_empty()
        };
        Dtype::ALL.into_iter().filter(ok).collect::<Vec<_>>()
    };
    assert_eq!(targets(Bool), [Bool, I32, U32, U64, F32]);
    assert_eq!(targets(U32), [I32, U32, U64, F32]);
    assert_eq!(targets(F32), [I32, U32, U64, F32, Fp16, Bf16, Fp8]);
    assert_eq!(targets(Bf16), [F32, Fp16, Bf16, Fp8]);
    let shape = one(F32_TILE, &[Type::scalar(U32)], |out, v| OpKind::Value(ValueOp::Cast { out, a: v[0] }));
    assert!(matches!(shape[..], [Problem::BadCast { advice: "a cast keeps the shape", .. }]));
}

const F32_TILE: Type = Type::tile(Dtype::F32, 64);

#[test]
fn bits_move_between_32_bit_types() {
    let bits = |to: Type, from: Type| {
        one(to, &[from], |out, v| OpKind::Value(ValueOp::Bitcast { out, a: v[0] })).is_empty()
    };
    assert!(bits(U32, F32) && bits(F32, I32));
    assert!(!bits(U64, F32) && !bits(U32, U64) && !bits(tile(Dtype::U32), F32));
}

/// Every message about one operation with a wrong operand or result.
#[test]
fn operand_and_result_types() {
    let t = tile(Dtype::F32);
    let short = Type::tile(Dtype::F32, 63);
    let mut all = String::new();
    let mut note = |found: Vec<Problem>| {
        assert_eq!(found.len(), 1, "{found:#?}");
        all += &format!("{}\n", found[0]);
    };
    note(one(F32, &[], |out, _| OpKind::Value(ValueOp::Const { out, value: Const::U32(1) })));
    note(one(U64, &[], |out, _| OpKind::Value(ValueOp::Rank { out })));
    note(one(I32, &[], |out, _| OpKind::Value(ValueOp::GroupIndex { out })));
    note(one(t, &[short, t], |out, v| {
        OpKind::Value(ValueOp::Binary { out, op: BinaryOp::Add, a: v[0], b: v[1] })
    }));
    note(one(t, &[t, F32], |out, v| {
        OpKind::Value(ValueOp::Binary { out, op: BinaryOp::Add, a: v[0], b: v[1] })
    }));
    note(one(F32, &[U32], |out, v| OpKind::Value(ValueOp::Unary { out, op: UnaryOp::Not, a: v[0] })));
    note(one(U32, &[U32, U32], |out, v| {
        OpKind::Value(ValueOp::Compare { out, op: CompareOp::Eq, a: v[0], b: v[1] })
    }));
    note(one(BOOL, &[U32, I32], |out, v| {
        OpKind::Value(ValueOp::Compare { out, op: CompareOp::Eq, a: v[0], b: v[1] })
    }));
    note(one(t, &[BOOL, t, t], |out, v| {
        OpKind::Value(ValueOp::Select { out, cond: v[0], a: v[1], b: v[2] })
    }));
    note(one(F32, &[BOOL, U32, F32], |out, v| {
        OpKind::Value(ValueOp::Select { out, cond: v[0], a: v[1], b: v[2] })
    }));
    note(one(F32, &[BOOL, F32, U32], |out, v| {
        OpKind::Value(ValueOp::Select { out, cond: v[0], a: v[1], b: v[2] })
    }));
    note(one(F32, &[F32, F32, U32], |out, v| OpKind::Value(ValueOp::Fma { out, a: v[0], b: v[1], c: v[2] })));
    note(one(U32, &[U32, U32, U32], |out, v| OpKind::Value(ValueOp::Fma { out, a: v[0], b: v[1], c: v[2] })));
    note(one(F32, &[F32], |out, v| OpKind::Value(ValueOp::Splat { out, a: v[0] })));
    note(one(t, &[U32], |out, v| OpKind::Value(ValueOp::Splat { out, a: v[0] })));
    note(one(tile(Dtype::I32), &[], |out, _| OpKind::Value(ValueOp::Arange { out })));
    note(one(U32, &[t], |out, v| OpKind::Value(ValueOp::Reduce { out, op: ReduceOp::Sum, a: v[0] })));
    note(one(F32, &[F32], |out, v| OpKind::Value(ValueOp::Reduce { out, op: ReduceOp::Sum, a: v[0] })));
    note(one(F32, &[F32], |out, v| {
        OpKind::Value(ValueOp::Scan { out, op: ReduceOp::Sum, a: v[0], exclusive: false })
    }));
    note(one(short, &[t], |out, v| {
        OpKind::Value(ValueOp::Scan { out, op: ReduceOp::Sum, a: v[0], exclusive: false })
    }));
    assert_snapshot!(all);
}

#[test]
fn control_flow_types() {
    let mut all = String::new();
    let mut note = |build: &dyn Fn(&mut Sample, P)| all += &format!("{}\n", role_error(build));
    note(&|s, p| {
        s.op(ControlOp::If {
            cond: p.epoch,
            then: Region::default(),
            otherwise: Region::default(),
            results: vec![],
        });
    });
    for wrong in [0, 1] {
        note(&|s, p| {
            let cond = of(s, BOOL);
            let float = of(s, F32);
            let out = s.b.kernel.add_value(U32, None);
            let arms = if wrong == 0 { (out, float, p.epoch) } else { (out, p.epoch, float) };
            let (then, otherwise) = (Region::default(), Region::default());
            s.op(ControlOp::If { cond, then, otherwise, results: vec![arms] });
        });
    }
    note(&|s, p| {
        s.op(ControlOp::While { header: Region::default(), cond: p.epoch, body: Region::default() });
    });
    note(&|s, _| {
        let f = of(s, F32);
        s.for_each("i", (f, f, f), |_, _| {});
    });
    for wrong in 0..3 {
        note(&|s, p| {
            let float = of(s, F32);
            let mut bounds = [p.epoch; 3];
            bounds[wrong] = float;
            let var = s.b.kernel.add_value(U32, Some("i".into()));
            let [start, end, step] = bounds;
            s.op(ControlOp::For { var, start, end, step, body: Region::default() });
        });
    }
    note(&|s, p| {
        let loc = s.loc();
        let var = s.b.var(F32, loc);
        s.op(ControlOp::VarDecl { var, init: p.epoch });
    });
    note(&|s, p| {
        let float = of(s, F32);
        let var = s.var("v", float);
        s.op(ControlOp::VarSet { var, value: p.epoch });
    });
    note(&|s, p| {
        let var = s.var("v", p.epoch);
        s.value("", F32, |out| ControlOp::VarGet { out, var });
    });
    assert_snapshot!(all);
}

#[test]
fn parameter_kinds() {
    let mut all = String::new();
    let mut note = |build: &dyn Fn(&mut Sample, P)| all += &format!("{}\n", role_error(build));
    note(&|s, p| {
        s.value("", U32, |out| ValueOp::ScalarParam { out, param: p.flag });
    });
    note(&|s, p| {
        s.value("", F32, |out| ValueOp::ScalarParam { out, param: p.n });
    });
    let load = |s: &mut Sample, param: ParamId, ty: Type| {
        let index = s.u32(0);
        s.value("", ty, |out| MemoryOp::Load { out, place: Place::Param(param), index, receipt: None });
    };
    note(&|s, p| load(s, p.flag, U32));
    note(&|s, p| load(s, p.n, U32));
    note(&|s, p| load(s, p.word, U32));
    let store = |s: &mut Sample, param: ParamId, ty: Type| {
        let value = of(s, ty);
        let index = s.u32(0);
        s.op(MemoryOp::Store { place: Place::Param(param), index, value, mask: None });
    };
    note(&|s, p| store(s, p.flag, U32));
    note(&|s, p| store(s, p.inbox, F32));
    note(&|s, p| store(s, p.word, U32));
    note(&|s, p| store(s, p.n, U32));
    note(&|s, p| {
        let (index, value) = (s.u32(0), of(s, F32));
        let place = Place::Param(p.inbox);
        s.value("", F32, |out| MemoryOp::Atomic { out, op: ReduceOp::Sum, place, index, value });
    });
    let (place, lanes, bools) = (Place::Param(ParamId(2)), tile(Dtype::U32), tile(Dtype::Bool));
    note(&|s, _| {
        let (index, mask, other) = (of(s, U32), of(s, bools), of(s, lanes));
        s.value("", lanes, |out| MemoryOp::LoadMasked { out, place, index, mask, other, receipt: None });
    });
    note(&|s, _| {
        let (index, mask) = (of(s, lanes), of(s, bools));
        s.value("", lanes, |out| MemoryOp::Gather { out, place, index, mask, other: index, receipt: None });
    });
    note(&|s, _| {
        let index = of(s, lanes);
        s.op(MemoryOp::Scatter { place, index, value: index, mask: None, adds: false });
    });
    assert_snapshot!(all);
    let (mut s, _) = start();
    let word = s.b.param("second", ParamKind::EpochWord, Dtype::U32, 1);
    s.value("", U64, |out| ValueOp::Epoch { out, word, advance: false });
    s.role("r", 1, |_| {});
    assert!(only(&s.finish()).contains("`epoch`: the result"), "the epoch is u32");
    let (mut s, p) = start();
    s.value("", U32, |out| ValueOp::Epoch { out, word: p.n, advance: false });
    s.role("r", 1, |_| {});
    assert_snapshot!(only(&s.finish()), @"src/sample.rs:3: `epoch` on parameter `n`, which is a scalar; it works on an epoch word");
}

/// A put to `buffer` and a signal of `flag`, with one thing wrong.
#[test]
fn put_signal_and_wait_types() {
    let mut all = String::new();
    let mut note = |build: &dyn Fn(&mut Sample, P)| {
        let k = with_role(build);
        let errors = verify_structure(&k).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        all += &format!("{}\n", errors[0]);
    };
    let put =
        |s: &mut Sample, buffer: ParamId, value: Type, index: Type, mask: Option<Type>, target: Type| {
            let (value, index) = (of(s, value), of(s, index));
            let mask = mask.map(|m| of(s, m));
            let to = of(s, target);
            let target = if target == U64 { Target::Mask(to) } else { Target::Rank(to) };
            let parcel = s.parcel(target);
            s.op(CommOp::Put(Put { parcel, buffer, index, value, mask }));
        };
    note(&|s, p| put(s, p.x, F32, U32, None, U32));
    note(&|s, p| put(s, p.inbox, U32, U32, None, U32));
    note(&|s, p| put(s, p.inbox, F32, I32, None, U32));
    note(&|s, p| put(s, p.inbox, F32_TILE, tile(Dtype::U32), None, U32));
    note(&|s, p| put(s, p.inbox, F32_TILE, U64, Some(tile(Dtype::U32)), U64));
    note(&|s, p| put(s, p.inbox, F32_TILE, U64, Some(BOOL), U64));
    note(&|s, p| put(s, p.inbox, F32, U32, None, I32));
    note(&|s, p| put(s, p.inbox, F32, U32, Some(BOOL), U32));
    note(&|s, p| {
        let (to, value) = (of(s, U32), of(s, F32));
        let parcel = s.parcel(Target::Mask(to));
        s.op(CommOp::Put(Put { parcel, buffer: p.inbox, index: to, value, mask: None }));
    });
    let order = SignalOrder::Release;
    let signal = |s: &mut Sample, flag: ParamId, index: Type, value: Type, target: Type| {
        let (index, value, to) = (of(s, index), of(s, value), of(s, target));
        let parcel = s.parcel(Target::Rank(to));
        s.op(CommOp::Signal(Signal { parcel, flag, index, value, order }));
    };
    note(&|s, p| signal(s, p.inbox, U32, U32, U32));
    note(&|s, p| signal(s, p.flag, I32, U32, U32));
    note(&|s, p| signal(s, p.flag, U32, U64, U32));
    note(&|s, p| signal(s, p.flag, U32, U32, F32));
    let wait = |s: &mut Sample, flag: ParamId, index: Type, from: Type, value: Type| {
        let (index, from, value) = (of(s, index), of(s, from), of(s, value));
        let receipt = s.receipt(flag);
        s.op(CommOp::Wait(Wait { receipt, flag, index, from, value }));
    };
    note(&|s, p| wait(s, p.x, U32, U32, U32));
    note(&|s, p| wait(s, p.flag, BOOL, U32, U32));
    note(&|s, p| wait(s, p.flag, U32, U64, U32));
    note(&|s, p| wait(s, p.flag, U32, U32, F32));
    let wait_all = |s: &mut Sample, flag: ParamId, [index, count, value]: [Type; 3], per_rank: u32| {
        let (index, count, value) = (of(s, index), of(s, count), of(s, value));
        let receipt = s.receipt(flag);
        s.op(CommOp::WaitAll(WaitAll {
            receipt,
            flag,
            index,
            count,
            only: None,
            per_rank,
            value,
            or_later: false,
        }));
    };
    note(&|s, p| wait_all(s, p.inbox, [U32; 3], 1));
    note(&|s, p| wait_all(s, p.flag, [F32, U32, U32], 1));
    note(&|s, p| wait_all(s, p.flag, [U32, U64, U32], 1));
    note(&|s, p| wait_all(s, p.flag, [U32, U32, I32], 1));
    note(&|s, p| wait_all(s, p.flag, [U32; 3], 0));
    note(&|s, p| {
        let (index, mask) = (of(s, U32), of(s, U64));
        let (receipt, only) = (s.receipt(p.flag), Some(mask));
        let (flag, count, value) = (p.flag, index, index);
        s.op(CommOp::WaitAll(WaitAll {
            receipt,
            flag,
            index,
            count,
            only,
            per_rank: 1,
            value,
            or_later: true,
        }));
    });
    assert_snapshot!(all);
}

#[test]
fn access_types() {
    let mut all = String::new();
    let mut note = |found: Vec<Problem>| {
        assert_eq!(found.len(), 1, "{found:#?}");
        all += &format!("{}\n", found[0]);
    };
    let place = Place::Param(ParamId(0));
    let (t, lanes, bools) = (F32_TILE, tile(Dtype::U32), tile(Dtype::Bool));
    let load = |out: Type, index: Type| {
        one(out, &[index], |out, v| OpKind::Memory(MemoryOp::Load { out, place, index: v[0], receipt: None }))
    };
    note(load(lanes, U32));
    note(load(t, I32));
    let masked = |out: Type, [index, mask, other]: [Type; 3]| {
        one(out, &[index, mask, other], |out, v| {
            OpKind::Memory(MemoryOp::LoadMasked {
                out,
                place,
                index: v[0],
                mask: v[1],
                other: v[2],
                receipt: None,
            })
        })
    };
    note(masked(F32, [U32, BOOL, F32]));
    note(masked(lanes, [U32, bools, lanes]));
    note(masked(t, [lanes, bools, t]));
    note(masked(t, [U32, lanes, t]));
    note(masked(t, [U32, bools, F32]));
    let gather = |out: Type, [index, mask, other]: [Type; 3]| {
        one(out, &[index, mask, other], |out, v| {
            OpKind::Memory(MemoryOp::Gather {
                out,
                place,
                index: v[0],
                mask: v[1],
                other: v[2],
                receipt: None,
            })
        })
    };
    note(gather(F32, [U32, BOOL, F32]));
    note(gather(lanes, [lanes, bools, lanes]));
    note(gather(t, [tile(Dtype::U64), bools, t]));
    note(gather(t, [lanes, BOOL, t]));
    note(gather(t, [lanes, bools, lanes]));
    let store = |index: Type, value: Type, mask: Option<Type>, scatter: bool| {
        problems(&with_role(|s, _| {
            let (index, value) = (of(s, index), of(s, value));
            let mask = mask.map(|m| of(s, m));
            s.op(match scatter {
                true => OpKind::Memory(MemoryOp::Scatter { place, index, value, mask, adds: false }),
                false => OpKind::Memory(MemoryOp::Store { place, index, value, mask }),
            });
        }))
    };
    note(store(U32, lanes, None, false));
    note(store(lanes, t, None, false));
    note(store(U32, t, Some(BOOL), false));
    note(store(U32, F32, Some(BOOL), false));
    note(store(U32, F32, None, true));
    note(store(U32, t, None, true));
    note(store(lanes, t, Some(lanes), true));
    note(store(lanes, lanes, None, true));
    let atomic = |out: Type, op: ReduceOp, value: Type| {
        one(out, &[U32, value], |out, v| {
            OpKind::Memory(MemoryOp::Atomic { out, op, place, index: v[0], value: v[1] })
        })
    };
    assert_eq!(atomic(F32, ReduceOp::Sum, F32), []);
    note(atomic(F32, ReduceOp::Max, F32));
    note(atomic(t, ReduceOp::Sum, F32));
    note(one(F32, &[I32, F32], |out, v| {
        OpKind::Memory(MemoryOp::Atomic { out, op: ReduceOp::Sum, place, index: v[0], value: v[1] })
    }));
    note(atomic(F32, ReduceOp::Sum, t));
    assert_snapshot!(all);
}
