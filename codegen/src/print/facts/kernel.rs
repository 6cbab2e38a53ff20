//! What is known about a kernel before anything is written.

use std::collections::{HashMap, HashSet};

use crate::{
    family::Target,
    ir::{Kernel, OpId, ParamId},
};

use super::{forms::Forms, sync::Barriers, timeline::Sites};
use crate::print::{
    PrintError,
    analysis::{
        ahead::{self, Ahead},
        program::Program,
        waits::Waits,
    },
    launch::args::ArgNames,
    layout::spread::{Layout, Layouts},
    loader::{cut::Side, plan::Loaders},
    matrix::lane_order,
    text::names::OwnNames,
    transport::{multimem, released},
};

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
    /// Which part of a kernel with loaders this is, if it is one.
    pub side: Option<(Side, &'k Loaders)>,
}

impl<'k> Facts<'k> {
    /// Runs the analyses.
    pub fn new(kernel: &'k Kernel, target: Target, timeline: Option<u32>) -> Result<Facts<'k>, PrintError> {
        let p = Program::new(kernel);
        let layouts = Layouts::new(&p, target)?;
        let forms = Forms::new(&p, &layouts);
        let barriers = Barriers::new(&p, &layouts, &forms);
        let lane_order = lane_order::matrices(&p, &layouts);
        let timeline = timeline.map(|slots| Sites::new(&p, slots)).transpose()?;
        Ok(Facts {
            layouts,
            barriers,
            forms,
            target,
            args: ArgNames::new(kernel, timeline.is_some()),
            own: OwnNames::new(kernel),
            ahead: ahead::find(kernel),
            released: released::of_kernel(kernel, target),
            lane_order,
            waits: Waits::of(kernel),
            fenced: multimem::fenced_stores(&p),
            timeline,
            side: None,
            p,
        })
    }

    /// A part of a kernel with loaders.
    pub fn part(side: Side, loaders: &'k Loaders, whole: &Facts) -> Result<Facts<'k>, PrintError> {
        let kernel = match side {
            Side::Loads => &loaders.loads,
            Side::Multiplies => &loaders.multiplies,
        };
        // The loaders' threads are not among those of the block as a group.
        let (side, waits) = (Some((side, loaders)), whole.waits.clone());
        Ok(Facts { side, waits, released: vec![], ..Facts::new(kernel, whole.target, None)? })
    }

    /// Whether what is written is run by loaders.
    pub fn loads(&self) -> bool {
        matches!(self.side, Some((Side::Loads, _)))
    }
}
