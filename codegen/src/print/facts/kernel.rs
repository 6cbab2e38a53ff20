//! What is known about a kernel before anything is written.

use std::collections::{HashMap, HashSet};

use super::{Barriers, EmitOptions, FarEngine, Forms, Sites};
use crate::family::Target;
use crate::ir::{Kernel, OpId, ParamId};
use crate::print::analysis::{
    Program, Waits,
    ahead::{self, Ahead},
    gin::{self, Burst},
    multimem, signals,
};
use crate::print::layout::{Fragments, Layout, Layouts, Moved, lane_order};
use crate::print::text::{ArgNames, OwnNames, PrintError};

/// Columns of which four neighbouring lanes have all, once they have exchanged what they hold of them.
const EXCHANGED: u32 = 32;

/// What a function is for that some warps of a block run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The loader's: it waits for operands of other ranks, and brings them. It draws from work counters, for the others as well.
    Loads,
    /// All other warps': they multiply, store, signal, and wait for what they read themselves. They take what the loader has drawn.
    Multiplies,
}

/// What is known about a kernel before anything is written.
#[derive(Debug)]
pub(crate) struct Facts<'k> {
    pub p: Program<'k>,
    pub layouts: Layouts,
    pub barriers: Barriers,
    pub forms: Forms,
    pub target: Target,
    pub args: ArgNames,
    pub own: OwnNames,
    /// Packets that are looked at before reads of LL elements.
    pub ahead: Ahead,
    /// Signals of what earlier launches did.
    pub released: Vec<OpId>,
    /// The matrices in memory that lie as lanes hold them, and how lanes hold a tile.
    pub lane_order: HashMap<ParamId, Layout>,
    /// The places of its waits.
    pub waits: Waits,
    /// The stores that have a proxy fence behind them.
    pub fenced: HashSet<OpId>,
    /// What the kernel records about itself, if it does.
    pub timeline: Option<Sites>,
    /// What carries its far channels.
    pub far: FarEngine,
    /// The puts that GIN carries.
    pub bursts: HashMap<OpId, Burst>,
    /// Which part of a kernel with loaders this is, if it is one.
    pub side: Option<Side>,
}

impl<'k> Facts<'k> {
    /// Runs the analyses.
    pub fn new(kernel: &'k Kernel, target: Target, options: &EmitOptions) -> Result<Facts<'k>, PrintError> {
        let p = Program::new(kernel);
        let layouts = Layouts::new(&p, target)?;
        let forms = Forms::new(&p, &layouts);
        let barriers = Barriers::new(&p, &layouts, &forms);
        let lane_order = lane_order::matrices(&p, &layouts);
        let timeline = options.timeline.map(|slots| Sites::new(&p, slots)).transpose()?;
        Ok(Facts {
            layouts,
            barriers,
            forms,
            target,
            args: ArgNames::new(kernel, timeline.is_some()),
            own: OwnNames::new(kernel),
            ahead: ahead::find(kernel),
            released: signals::released(kernel, target),
            lane_order,
            waits: Waits::of(kernel),
            fenced: multimem::fenced_stores(&p),
            timeline,
            far: options.far,
            bursts: gin::bursts(kernel),
            side: None,
            p,
        })
    }

    /// A part of a kernel with loaders, which is the kernel that a side runs.
    pub fn part(side: Side, kernel: &'k Kernel, whole: &Facts) -> Result<Facts<'k>, PrintError> {
        // The loaders' threads are not among those of the block as a group.
        let (side, waits) = (Some(side), whole.waits.clone());
        let options = EmitOptions { far: whole.far, ..EmitOptions::default() };
        Ok(Facts { side, waits, released: vec![], ..Facts::new(kernel, whole.target, &options)? })
    }

    /// Whether what is written is run by loaders.
    pub fn loads(&self) -> bool {
        matches!(self.side, Some(Side::Loads))
    }

    /// Whether lanes exchange what they hold of a matrix before they store it, so that each stores 16 bytes at once: two elements
    /// of a row are what the matrix instructions of NVIDIA's GPUs leave them.
    pub fn exchanges(&self, Moved { rows, column, matrix }: Moved<'_>) -> bool {
        let Some(Fragments { columns, across, .. }) = self.layouts.of(matrix).fragments else { return false };
        // 16 bytes of elements of one or two each.
        let whole = |p: ParamId| {
            let param = &self.p.kernel.params[p.index()];
            let (bytes, each) = (param.dtype.bytes(), 16 / param.dtype.bytes());
            bytes <= 2
                && param.columns != Some(1)
                && (columns / across).is_multiple_of(EXCHANGED * 2 / bytes)
                && self.p.divisor(column, each) == each
        };
        matches!(self.target, Target::Cuda(_)) && rows.place.param().is_some_and(whole)
    }
}
