//! Products of matrices on the simulator: what they are, where edges end, and that each mistake with them is found.

use crate::printed::products;
use crate::printed::{groups, norms};

use std::sync::Arc;

use half::{bf16, f16};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{Mutant, every, mutate};
use peerwarp_codegen::ir::{
    Deinterleave, Dtype, Kernel, MatrixOp, OpKind, Param, Planted, ReduceLines, VerifyErrors, verify,
};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};
use products::{COLUMNS, K, ROWS, THEIRS, products};

/// A matrix of small whole numbers, of its own for each seed: sums of products are exact.
fn matrix(rows: u32, columns: u32, seed: u32) -> Vec<f32> {
    (0..rows * columns).map(|i| ((i * 7 + i / columns * 3 + seed * 13) % 17) as f32 - 8.0).collect()
}

struct Inputs {
    x: Vec<f32>,
    w: Vec<f32>,
    left: Vec<f32>,
    right: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

fn inputs(rank: u32) -> Inputs {
    Inputs {
        x: matrix(ROWS, K, rank),
        w: matrix(COLUMNS, K, 2 + rank),
        left: matrix(ROWS, 72, 4 + rank),
        right: matrix(COLUMNS, 72, 6 + rank),
        bias: matrix(1, COLUMNS, 8 + rank),
        residual: matrix(ROWS, COLUMNS, 10 + rank),
    }
}

fn product(x: &[f32], w: &[f32], k: u32, (row, column): (u32, u32)) -> f32 {
    let of = |m: &[f32], row: u32, i: u32| m[(row * k + i) as usize];
    (0..k).map(|i| of(x, row, i) * of(w, column, i)).sum()
}

fn machine(kernel: Planted, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    let narrow = |m: &[f32]| m.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    let half = |m: &[f32]| m.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
    for rank in 0..2 {
        let i = inputs(rank);
        machine.write(rank, "x", 0, &narrow(&i.x)).unwrap();
        machine.write(rank, "w", 0, &narrow(&i.w)).unwrap();
        machine.write(rank, "left", 0, &half(&i.left)).unwrap();
        machine.write(rank, "right", 0, &half(&i.right)).unwrap();
        machine.write(rank, "bias", 0, &narrow(&i.bias)).unwrap();
        machine.write(rank, "residual", 0, &i.residual).unwrap();
        // What is not written stays as it was.
        machine.write(rank, "theirs", 0, &vec![0.5f32; (ROWS * COLUMNS) as usize]).unwrap();
    }
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

#[test]
fn products_are_those_of_the_definition() {
    for warp_size in [32, 64] {
        let machine = machine(Planted::new(products(warp_size)).unwrap(), 3);
        for seed in 0..6 {
            let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
            for rank in 0..2 {
                let (i, next) = (inputs(rank), inputs(1 - rank));
                let out = outcome.memory.read::<bf16>(rank, "out").unwrap();
                let theirs = outcome.memory.read::<f32>(rank, "theirs").unwrap();
                for (row, column) in (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column))) {
                    let at = (row * COLUMNS + column) as usize;
                    let sum = product(&i.x, &i.w, K, (row, column))
                        + product(&i.left, &i.right, 72, (row, column))
                        + i.bias[column as usize]
                        + i.residual[at];
                    assert_eq!(out[at], bf16::from_f32(sum.max(0.0) * 0.5), "rank {rank}, {row}, {column}");
                    if row < THEIRS {
                        let bias = i.bias.get(column as usize + 5).unwrap_or(&0.0);
                        let want = product(&next.x, &i.w, K, (row, column)) + bias;
                        assert_eq!(theirs[at], want, "rank {rank}, {row}, {column}");
                    }
                }
            }
        }
    }
}

/// What comes of the rows and columns of a product.
fn normed(kernel: Planted) -> Vec<Vec<f32>> {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    let narrow = |m: &[f32]| m.iter().map(|x| bf16::from_f32(*x * 0.5)).collect::<Vec<_>>();
    for rank in 0..2 {
        machine.write(rank, "x", 0, &narrow(&matrix(norms::ROWS, norms::K, rank))).unwrap();
        machine.write(rank, "w", 0, &narrow(&matrix(norms::COLUMNS, norms::K, 2))).unwrap();
    }
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let names = ["normed", "least", "weights", "sums", "most"];
    names.iter().map(|name| outcome.memory.read::<f32>(1, name).unwrap().to_vec()).collect()
}

#[test]
fn rows_and_columns_are_reduced() {
    let [x, w] = [(norms::ROWS, 1), (norms::COLUMNS, 2)]
        .map(|(rows, seed)| matrix(rows, norms::K, seed).iter().map(|x| x * 0.5).collect::<Vec<_>>());
    let columns = norms::COLUMNS;
    let at = |row: u32, column: u32| {
        if row < norms::ROWS { product(&x, &w, norms::K, (row, column)) } else { 0.0 }
    };
    let found = normed(Planted::new(norms::norms(32)).unwrap());
    for row in 0..norms::ROWS {
        let elements: Vec<f32> = (0..columns).map(|column| at(row, column)).collect();
        let mean = elements.iter().sum::<f32>() / columns as f32;
        let variance = elements.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / columns as f32;
        let most = elements.iter().copied().fold(f32::MIN, f32::max);
        let weights: Vec<f32> = elements.iter().map(|x| (x * 0.125 - most * 0.125).exp()).collect();
        let sum: f32 = weights.iter().sum();
        let least = elements.iter().copied().fold(f32::MAX, f32::min);
        for i in 0..columns as usize {
            let of = (row * columns) as usize + i;
            let normed = (elements[i] - mean) / (variance + 1e-5).sqrt();
            assert!((found[0][of] - normed).abs() < 1e-5, "row {row}, {i}");
            assert!((found[2][of] - weights[i] / sum).abs() < 1e-6, "row {row}, {i}");
        }
        let each = norms::EACH as usize;
        assert_eq!(found[1][row as usize * each..][..each], [least; norms::EACH as usize]);
    }
    for (i, (band, column)) in
        (0..norms::BANDS).flat_map(|band| (0..columns).map(move |column| (band, column))).enumerate()
    {
        let elements: Vec<f32> = (0..64).map(|row| at(band * 64 + row, column)).collect();
        let most = elements.iter().copied().fold(f32::MIN, f32::max);
        let least = elements.iter().copied().fold(f32::MAX, f32::min);
        assert_eq!((found[3][i], found[4][i]), (elements.iter().sum::<f32>(), most + least), "{column}");
    }
}

/// Sums for maxima, and columns for rows: results are others.
#[test]
fn reductions_are_told_apart() {
    use peerwarp_codegen::ir::Lines;
    let right = normed(Planted::new(norms::norms(32)).unwrap());
    let sites = || norms::norms(32).ops.len();
    let mut changed = 0;
    for at in 0..sites() {
        for lines in [Lines::Rows, Lines::Columns] {
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
                let mut kernel = norms::norms(32);
                let OpKind::Matrix(MatrixOp::ReduceLines(reduce)) = &mut kernel.ops[at].kind else {
                    continue;
                };
                if (reduce.op, reduce.lines) == (op, lines) {
                    continue;
                }
                (reduce.op, reduce.lines) = (op, lines);
                assert!(normed(Planted::new(kernel).unwrap()) != right, "{op:?} of {lines:?}");
                changed += 1;
            }
        }
    }
    assert_eq!(changed, 8 * 5);
}

/// The kinds of findings over some seeds.
fn found(kernel: &Planted) -> Vec<FindingKind> {
    let machine = machine(kernel.clone(), 3);
    let run = |seed| machine.run(&Options::default().with_seed(seed)).err();
    let mut kinds: Vec<FindingKind> =
        (0..8).filter_map(run).flat_map(|f| f.list.into_iter().map(|f| f.kind)).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Every row, end, column and count that is off by one, each by itself: the kernel breaks a rule, or its results are others.
#[test]
fn every_planted_mistake_shows() {
    let kernel = products(32);
    let right = machine(Planted::new(kernel.clone()).unwrap(), 3).run(&Options::default()).unwrap();
    let of_matrices = |mutant: &Mutant| {
        ["dot", "load_matrix", "load_row", "store_matrix"].iter().any(|op| mutant.op.starts_with(op))
    };
    let mutants: Vec<Mutant> = every(&kernel).into_iter().filter(of_matrices).collect();
    let mut shown = 0;
    for mutant in &mutants {
        let Ok(planted) = mutate(&kernel, &mutant.mutation) else { continue };
        let outcome = machine(planted.clone(), 3).run(&Options::default());
        let differs = outcome.is_ok_and(|outcome| {
            (0..2).any(|rank| {
                outcome.memory.read::<bf16>(rank, "out").unwrap()
                    != right.memory.read::<bf16>(rank, "out").unwrap()
                    || outcome.memory.read::<f32>(rank, "theirs").unwrap()
                        != right.memory.read::<f32>(rank, "theirs").unwrap()
            })
        });
        assert!(differs || !found(&planted).is_empty(), "nothing shows {mutant:?}");
        shown += 1;
    }
    assert!(shown >= 12, "{shown} of {}", mutants.len());
}

/// What the verifier says of a kernel of two matrices.
fn refused(change: impl FnOnce(&mut Kernel)) -> String {
    refused_of(products(32), change)
}

fn refused_of(mut kernel: Kernel, change: impl FnOnce(&mut Kernel)) -> String {
    change(&mut kernel);
    verify(kernel).map_err(|e: VerifyErrors| e.to_string()).expect_err("it is wrong")
}

#[test]
fn what_cannot_be_multiplied_is_refused_by_the_verifier() {
    fn x(kernel: &mut Kernel) -> &mut Param {
        kernel.params.iter_mut().find(|p| p.name == "x").unwrap()
    }
    let dots = |kernel: &mut Kernel, change: &dyn Fn(&mut peerwarp_codegen::ir::Dot)| {
        for op in &mut kernel.ops {
            if let OpKind::Matrix(MatrixOp::Dot(dot)) = &mut op.kind {
                change(dot);
            }
        }
    };
    let all = [
        ("no matrix", refused(|k| x(k).columns = None)),
        ("other columns", refused(|k| x(k).columns = Some(128))),
        ("rows of 4 bytes", refused(|k| x(k).columns = Some(2))),
        ("a type that is not multiplied", refused(|k| x(k).dtype = Dtype::F32)),
        ("two types", refused(|k| x(k).dtype = Dtype::Fp16)),
        ("one stage", refused(|k| dots(k, &|dot| dot.stages = 1))),
        ("more stages than room", refused(|k| dots(k, &|dot| dot.stages = 4))),
        (
            "a conjunction of rows",
            refused_of(norms::norms(32), |k| {
                for op in &mut k.ops {
                    if let OpKind::Matrix(MatrixOp::ReduceLines(reduce)) = &mut op.kind {
                        reduce.op = ReduceOp::And;
                        break;
                    }
                }
            }),
        ),
        (
            "half of another matrix",
            refused_of(norms::norms(32), |k| {
                for op in &mut k.ops {
                    if let OpKind::Matrix(MatrixOp::ReduceLines(ReduceLines { out, a, .. })) = op.kind {
                        op.kind = MatrixOp::Deinterleave(Deinterleave { out, a, odd: true }).into();
                        break;
                    }
                }
            }),
        ),
        ("gathered rows on the right", refused(|k| dots(k, &|dot| dot.b.list = dot.a.place.param()))),
        ("a list that is a matrix", refused(|k| dots(k, &|dot| dot.a.list = dot.a.place.param()))),
        ("no receipt", refused(|k| dots(k, &|dot| dot.a.receipt = None))),
    ];
    let text: Vec<String> = all.iter().map(|(what, said)| format!("{what}\n{said}\n")).collect();
    insta::assert_snapshot!(text.join("\n"));
}

fn said(body: impl FnOnce(&mut Binder)) -> String {
    trace(TraceMeta::new("demo", 2, 32, 4), body).expect_err("it is wrong").to_string()
}

#[test]
fn mistakes_end_the_trace() {
    let with = |act: fn(Group, AnyMatrix, AnyMatrix)| {
        said(move |p| {
            let (x, w) = (p.matrix("x", [64, 128], Dtype::Bf16), p.matrix("w", [64, 128], Dtype::Bf16));
            role("main", 1, |b| act(b, x, w));
        })
    };
    let listed = |act: fn(Group, AnyMatrix, Ptr<u32>) -> Tile<f32>| {
        said(move |p| {
            let (x, list) = (p.matrix("x", [64, 128], Dtype::Bf16), p.arg("list", 64));
            role("main", 1, |b| {
                let _ = act(b, x, list);
            });
        })
    };
    let all = [
        with(|b, x, w| w.rows(0, 64).store_f32(0, b.dot(x.rows(0, 32), w.rows(0, 64), 2))),
        with(|_, x, _| x.rows(0, 64).store_f32(0, splat(0.0f32, 64 * 64))),
        with(|b, x, w| {
            let sums = b.dot(x.rows(0, 32), w.rows(0, 64), 2);
            x.rows(0, 32).store_f32(0, sums + b.dot(x.rows(0, 64), w.rows(0, 32), 2));
        }),
        with(|b, x, w| {
            let sums = b.dot(x.rows(0, 64), w.rows(0, 32), 2);
            x.rows(0, 32).store_f32(0, b.dot_add(sums, x.rows(0, 32), w.rows(0, 64), 2));
        }),
        with(|b, x, w| {
            let sums = b.dot(x.rows(0, 32).columns(0, 8), w.rows(0, 64).columns(8, 8), 2);
            x.rows(0, 32).store_f32(0, sums);
        }),
        with(|b, x, w| {
            let sums = b.dot(x.rows(0, 32), w.rows(0, 64), 2);
            x.rows(0, 32).columns(8, 8).store_f32(8, sums.row_max());
        }),
        with(|_, x, _| x.rows(0, 64).store_f32(0, x.rows(0, 64).columns(0, 8).load_f32(0, 64))),
        with(|_, x, _| x.elements().store_f32(0, x.elements().load_f32(0, 64).row_sum())),
        with(|b, x, w| {
            let (even, odd) = b.dot(x.rows(0, 64), w.rows(0, 48), 2).deinterleave();
            x.rows(0, 64).store_f32(0, even + odd);
        }),
        with(|b, x, w| x.rows(0, 1024).store_f32(0, b.dot(x.rows(0, 1024), w.rows(0, 1024), 2))),
        listed(|b, x, list| b.dot(x.rows(0, 64), x.gather_rows(&list, 0, 64), 2)),
        listed(|_, x, list| x.gather_rows(&list, 0, 64).load_f32(0, 64)),
        listed(|b, x, list| {
            x.gather_rows(&list, 0, 64).store_f32(0, b.dot(x.rows(0, 64), x.rows(0, 64), 2));
            splat(0.0f32, 64)
        }),
        said(|p| {
            let (x, w) = (
                p.matrix::<AnyMatrix>("x", [64, 128], Dtype::Bf16),
                p.matrix::<AnyMatrix>("w", [64, 64], Dtype::Bf16),
            );
            role("main", 1, |b| x.rows(0, 64).store_f32(0, b.dot(x.rows(0, 64), w.rows(0, 64), 2)));
        }),
        said(|p| {
            let (x, w) = (
                p.matrix::<AnyMatrix>("x", [64, 64], Dtype::Bf16),
                p.matrix::<AnyMatrix>("w", [64, 64], Dtype::Fp16),
            );
            role("main", 1, |b| x.rows(0, 64).store_f32(0, b.dot(x.rows(0, 64), w.rows(0, 64), 2)));
        }),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

/// Groups of any number of rows: windows of matrices begin where memory says, and stores end there.
#[test]
fn rows_of_groups_have_their_own_weights() {
    let [x, w] = [(groups::ROWS, 3), (groups::GROUPS * groups::COLUMNS, 4)]
        .map(|(rows, seed)| matrix(rows, groups::K, seed));
    let kernel = Arc::new(Compiled::planted(Planted::new(groups::groups(32)).unwrap()));
    for rows in [[70, 0, 1, 64, 8], [0, 0, 0, 0, 150], [30, 30, 30, 30, 30], [0; 5]] {
        let mut machine = Machine::new(1);
        machine.buffers_of(kernel.kernel()).unwrap();
        let narrow = |m: &[f32]| m.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
        machine.write(0, "x", 0, &narrow(&x)).unwrap();
        machine.write(0, "w", 0, &narrow(&w)).unwrap();
        machine.write(0, "rows", 0, &rows).unwrap();
        let unwritten = vec![bf16::from_f32(0.5); (groups::ROWS * groups::COLUMNS) as usize];
        machine.write(0, "out", 0, &unwritten).unwrap();
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
        let out = outcome.memory.read::<bf16>(0, "out").unwrap();
        let group_of: Vec<u32> =
            (0..5).zip(rows).flat_map(|(group, rows)| (0..rows).map(move |_| group)).collect();
        for row in 0..groups::ROWS {
            for column in 0..groups::COLUMNS {
                let of = |group: &u32| (row, group * groups::COLUMNS + column);
                let want = group_of.get(row as usize).map_or(0.5, |g| product(&x, &w, groups::K, of(g)));
                let found = out[(row * groups::COLUMNS + column) as usize];
                assert_eq!(found, bf16::from_f32(want), "{rows:?}: {row}, {column}");
            }
        }
    }
}
