//! Banks: the number of launches after which a kernel uses the same memory again.

use std::collections::{HashMap, HashSet};

use super::super::*;
use super::fold::fold;
use super::{Facts, Tree};

/// The largest number of banks.
const MOST_BANKS: u32 = 64;
/// Launches that are computed. The last two thirds show every number of banks twice.
const LAUNCHES: usize = 3 * MOST_BANKS as usize;
/// Most operations of a launch: of a loop that goes on, the first round stands for all.
const MOST_STEPS: u32 = 1 << 14;

/// Number of launches after which a kernel uses the same bank again, from 1 to 64: the longest period of a number
/// that it computes of an epoch, or of a word that it loads and stores again.
///
/// Some launches of one rank are computed in order. What else memory holds, and what ranks and groups differ in, is one number.
pub fn banks(kernel: &Kernel) -> u32 {
    let tree = Tree::of(kernel);
    let facts = Facts::of(kernel, &tree);
    let stored = stored(kernel, &tree);
    let counted = counted(kernel, &tree, &stored);
    let mut run = Run {
        kernel,
        facts: &facts,
        stored,
        counted: &counted,
        values: HashMap::new(),
        vars: HashMap::new(),
        words: HashMap::new(),
        epoch: 0,
        steps: 0,
    };
    let numbers: Vec<ValueId> = counted.iter().copied().filter(|&v| kernel.ty(v).dtype.is_int()).collect();
    if numbers.is_empty() {
        return 1;
    }
    let mut seen = vec![Vec::with_capacity(LAUNCHES); numbers.len()];
    for _ in 0..LAUNCHES {
        run.launch();
        for (&number, seen) in numbers.iter().zip(&mut seen) {
            seen.push(run.values.get(&number).map(|known| known.value));
        }
    }
    seen.iter().map(|seen| period(&seen[MOST_BANKS as usize..])).max().unwrap_or(1)
}

/// The shortest period of a sequence; 1 if it has none up to the most banks.
fn period(seen: &[Option<Const>]) -> u32 {
    let is_one = |&n: &u32| seen.iter().zip(&seen[n as usize..]).all(|(a, b)| a == b);
    (1..=MOST_BANKS).find(is_one).unwrap_or(1)
}

/// The parameters that a kernel stores numbers to. Work counters are zero again at the end of a launch.
fn stored(kernel: &Kernel, tree: &Tree) -> HashSet<ParamId> {
    let places = tree.in_order().iter().filter_map(|&id| match kernel.op(id).kind {
        OpKind::Memory(
            MemoryOp::Store { place: Place::Param(p), .. }
            | MemoryOp::Scatter { place: Place::Param(p), .. }
            | MemoryOp::Atomic { place: Place::Param(p), .. },
        ) => Some(p),
        OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => {
            None
        }
    });
    let keeps = |p: &ParamId| {
        let param = &kernel.params[p.index()];
        param.kind != ParamKind::Counters && param.dtype.is_int()
    };
    places.filter(keeps).collect()
}

/// The values that are computed of epochs and of what is stored.
fn counted(kernel: &Kernel, tree: &Tree, stored: &HashSet<ParamId>) -> HashSet<ValueId> {
    let (mut values, mut vars, mut shared) = (HashSet::new(), HashSet::new(), HashSet::new());
    loop {
        let before = (values.len(), vars.len(), shared.len());
        for &id in tree.in_order() {
            let kind = &kernel.op(id).kind;
            let counts = |v: &ValueId| values.contains(v);
            match kind {
                OpKind::Value(ValueOp::Epoch { out, .. }) => _ = values.insert(*out),
                OpKind::Memory(
                    MemoryOp::Load { out, place, .. }
                    | MemoryOp::LoadMasked { out, place, .. }
                    | MemoryOp::Gather { out, place, .. }
                    | MemoryOp::Atomic { out, place, .. },
                ) => {
                    let is_kept = |p: ParamId| stored.contains(&p);
                    let is_counted = place.shared().is_some_and(|s| shared.contains(&s));
                    if place.param().is_some_and(is_kept) || is_counted {
                        values.insert(*out);
                    }
                }
                OpKind::Memory(
                    MemoryOp::Store { place: Place::Shared(s), value, .. }
                    | MemoryOp::Scatter { place: Place::Shared(s), value, .. },
                ) if counts(value) => _ = shared.insert(*s),
                OpKind::Control(
                    ControlOp::VarDecl { var, init: v } | ControlOp::VarSet { var, value: v },
                ) if counts(v) => {
                    vars.insert(*var);
                }
                OpKind::Control(ControlOp::VarGet { out, var }) if vars.contains(var) => {
                    _ = values.insert(*out)
                }
                OpKind::Control(ControlOp::For { var, start, end, .. }) if counts(start) || counts(end) => {
                    values.insert(*var);
                }
                OpKind::Control(ControlOp::If { cond, results, .. }) => {
                    let all = results.iter().filter(|r| counts(cond) || counts(&r.1) || counts(&r.2));
                    let all: Vec<ValueId> = all.map(|r| r.0).collect();
                    values.extend(all);
                }
                OpKind::Value(_) if kind.operands().iter().any(counts) => values.extend(kind.outs()),
                OpKind::Value(_)
                | OpKind::Memory(_)
                | OpKind::Matrix(_)
                | OpKind::Comm(_)
                | OpKind::Control(_) => {}
            }
        }
        if (values.len(), vars.len(), shared.len()) == before {
            return values;
        }
    }
}

/// A number, and whether all ranks, groups and inputs have it.
#[derive(Clone, Copy)]
struct Known {
    value: Const,
    certain: bool,
}

/// How a region was left.
#[derive(Clone, Copy, PartialEq)]
enum Left {
    AtItsEnd,
    Break(u32),
    Continue(u32),
    /// Not always.
    Perhaps,
}

/// One rank's launches. Tiles are their first element.
struct Run<'k> {
    kernel: &'k Kernel,
    facts: &'k Facts,
    stored: HashSet<ParamId>,
    counted: &'k HashSet<ValueId>,
    values: HashMap<ValueId, Known>,
    vars: HashMap<VarId, Known>,
    words: HashMap<(Place, Const), Known>,
    epoch: u32,
    steps: u32,
}

impl Run<'_> {
    fn launch(&mut self) {
        (self.epoch, self.steps) = (self.epoch + 1, 0);
        self.values.clear();
        self.vars.clear();
        let kernel = self.kernel;
        let regions = std::iter::once(&kernel.prologue).chain(kernel.roles.iter().map(|role| &role.body));
        regions.for_each(|region| _ = self.region(region));
    }

    fn get(&self, v: ValueId) -> Known {
        if let Some(value) = self.facts.constant(v) {
            return Known { value, certain: true };
        }
        self.values.get(&v).copied().unwrap_or_else(|| self.unknown(self.kernel.ty(v).dtype))
    }

    /// A number that stands for any.
    fn unknown(&self, dtype: Dtype) -> Known {
        let value = whole(1, dtype).unwrap_or(Const::Bool(true));
        Known { value, certain: false }
    }

    /// Whether a condition holds, if it is certain.
    fn truth(&self, v: ValueId) -> Option<bool> {
        let Known { value, certain } = self.get(v);
        certain.then_some(value == Const::Bool(true))
    }

    fn set(&mut self, v: ValueId, known: Known) {
        self.values.insert(v, known);
    }

    fn region(&mut self, region: &Region) -> Left {
        let mut left = Left::AtItsEnd;
        for &id in &region.ops {
            self.steps += 1;
            match self.step(id) {
                Left::AtItsEnd => {}
                Left::Perhaps => left = Left::Perhaps,
                Left::Break(depth) => return Left::Break(depth),
                Left::Continue(depth) => return Left::Continue(depth),
            }
        }
        left
    }

    fn step(&mut self, id: OpId) -> Left {
        let kernel = self.kernel;
        let kind = &kernel.op(id).kind;
        match kind {
            OpKind::Value(ValueOp::Epoch { out, .. }) => {
                self.set(*out, Known { value: Const::U32(self.epoch), certain: true });
            }
            OpKind::Value(op) => {
                if let Some(&out) = kind.outs().first().filter(|out| self.counted.contains(out)) {
                    let known = self.value(kind, op, out);
                    self.set(out, known);
                }
            }
            OpKind::Memory(op) => self.memory(op),
            OpKind::Matrix(_) | OpKind::Comm(_) => {}
            OpKind::Control(op) => return self.control(op),
        }
        Left::AtItsEnd
    }

    fn value(&self, kind: &OpKind, op: &ValueOp, out: ValueId) -> Known {
        let dtype = self.kernel.ty(out).dtype;
        let certain = kind.operands().iter().all(|&v| self.get(v).certain);
        let number = |v: ValueId| Some(self.get(v).value);
        let value = match *op {
            ValueOp::Splat { a, .. } => number(a),
            // Of bits that are not the lowest, each is a number of its own launches.
            ValueOp::Binary { op: BinaryOp::And, a, b, .. }
                if [a, b].into_iter().any(|v| {
                    let mask = self.facts.int(v).unwrap_or(0);
                    mask & (mask + 1) != 0
                }) =>
            {
                None
            }
            ValueOp::Reduce { op: ReduceOp::Min | ReduceOp::Max, a, .. } => number(a),
            any!(given, by_element, reductions) | ValueOp::Arange { .. } => {
                fold(kind, Type::scalar(dtype), &number)
            }
        };
        value.map_or_else(|| self.unknown(dtype), |value| Known { value, certain })
    }

    fn memory(&mut self, op: &MemoryOp) {
        match *op {
            MemoryOp::Load { out, place, index, .. }
            | MemoryOp::LoadMasked { out, place, index, .. }
            | MemoryOp::Gather { out, place, index, .. } => {
                let known = self.word(place, index, out);
                self.set(out, known);
            }
            MemoryOp::Store { place, index, value, .. }
            | MemoryOp::Scatter { place, index, value, adds: false, .. } => {
                let (index, value) = (self.get(index).value, self.get(value));
                self.words.insert((place, index), value);
            }
            MemoryOp::Atomic { out, op, place, index, value } => {
                let (old, by) = (self.word(place, index, out), self.get(value));
                self.set(out, old);
                let op = match op {
                    ReduceOp::Sum => BinaryOp::Add,
                    ReduceOp::Min => BinaryOp::Min,
                    ReduceOp::Max => BinaryOp::Max,
                    ReduceOp::And => BinaryOp::And,
                    ReduceOp::Or => BinaryOp::Or,
                };
                if let Some(new) = op.of_constants(old.value, by.value).ok().flatten() {
                    let new = Known { value: new, certain: old.certain && by.certain };
                    self.words.insert((place, self.get(index).value), new);
                }
            }
            MemoryOp::Tally { .. } | MemoryOp::Ticket { .. } | MemoryOp::Scatter { adds: true, .. } => {}
        }
    }

    /// What a word of memory holds: zero at first, if the kernel stores there.
    fn word(&self, place: Place, index: ValueId, out: ValueId) -> Known {
        let dtype = self.kernel.ty(out).dtype;
        let is_kept = place.param().is_none_or(|p| self.stored.contains(&p));
        let zero = whole(0, dtype).map(|value| Known { value, certain: true });
        let held = self.words.get(&(place, self.get(index).value)).copied().or(zero);
        held.filter(|_| is_kept).unwrap_or_else(|| self.unknown(dtype))
    }

    fn control(&mut self, op: &ControlOp) -> Left {
        match op {
            ControlOp::VarDecl { var, init: value } | ControlOp::VarSet { var, value } => {
                let known = self.get(*value);
                self.vars.insert(*var, known);
            }
            ControlOp::VarGet { out, var } => {
                if let Some(&known) = self.vars.get(var) {
                    self.set(*out, known);
                }
            }
            ControlOp::Break { depth } => return Left::Break(*depth),
            ControlOp::Continue { depth } => return Left::Continue(*depth),
            ControlOp::Split { body, .. } => return self.region(body),
            ControlOp::If { cond, then, otherwise, results } => {
                let truth = self.truth(*cond);
                let mut left = Left::AtItsEnd;
                for (region, arm) in [(then, true), (otherwise, false)] {
                    if truth.is_none_or(|truth| truth == arm) {
                        let this = self.region(region);
                        left = if truth.is_some() || this == left { this } else { Left::Perhaps };
                    }
                }
                for &(out, then, otherwise) in results {
                    let Known { value, certain } =
                        self.get(if truth == Some(false) { otherwise } else { then });
                    self.set(out, Known { value, certain: certain && truth.is_some() });
                }
                return left;
            }
            ControlOp::For { var, start, end, step, body } => {
                let first = self.get(*start);
                // Rounds that no number of launches decides are alike.
                let certain = self.counted.contains(var) && self.get(*end).certain && first.certain;
                self.set(*var, Known { certain: first.certain && certain, ..first });
                let less = |run: &Self| {
                    let at = run.get(*var).value;
                    CompareOp::Lt.of_constants(at, run.get(*end).value) == Some(true)
                };
                while !certain || less(self) {
                    let left = self.round(body);
                    let next = BinaryOp::Add
                        .of_constants(self.get(*var).value, self.get(*step).value)
                        .ok()
                        .flatten();
                    match (left, next) {
                        (None, Some(value)) if certain => self.set(*var, Known { value, certain }),
                        (None | Some(Left::AtItsEnd), _) => break,
                        (Some(left), _) => return left,
                    }
                }
            }
            ControlOp::While { header, cond, body } => loop {
                self.region(header);
                let truth = self.truth(*cond);
                if truth == Some(false) {
                    break;
                }
                match self.round(body) {
                    None if truth.is_some() => {}
                    None | Some(Left::AtItsEnd) => break,
                    Some(left) => return left,
                }
            },
        }
        Left::AtItsEnd
    }

    /// One round of a loop: none if another one follows, else how the loop was left.
    fn round(&mut self, body: &Region) -> Option<Left> {
        match self.region(body) {
            Left::AtItsEnd | Left::Continue(0) => (self.steps > MOST_STEPS).then_some(Left::AtItsEnd),
            Left::Break(0) | Left::Perhaps => Some(Left::AtItsEnd),
            Left::Break(depth) => Some(Left::Break(depth - 1)),
            Left::Continue(depth) => Some(Left::Continue(depth - 1)),
        }
    }
}

/// A whole number of an integer type.
fn whole(number: u32, dtype: Dtype) -> Option<Const> {
    Const::U32(number).cast(dtype).filter(|_| dtype != Dtype::F32)
}
