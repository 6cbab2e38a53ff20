//! A family of one's own around the shipped dispatch, with a hook of one's own.

use std::sync::Arc;

use peerwarp::codegen::dsl::prelude::*;
use peerwarp::codegen::family::{Family, Illegal, Legal};
use peerwarp::codegen::ir::{Const, Dtype, verify};
use peerwarp::codegen::sim::{Bindings, Compiled, Machine, Options};
use peerwarp::families::moe::kernels::{
    Dispatch, DispatchArgs, DispatchKey, Hook, IdType, Layout, Phase, Protocol, Quantise, ScaleLayout,
    ScaleRounding, dispatch_with,
};
use peerwarp::families::moe::reference::{self, Tokens};
use peerwarp::families::moe::{Routing, RowDtype};

/// Dispatch that brings rows without their negative elements.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "relu_dispatch", kernel = relu_dispatch, args = ReluArgs, warps = 2)]
pub struct ReluDispatch {
    #[key(short = "h", range = 8..=4096, multiple_of = 8)]
    pub hidden: u32,
    #[key(short = "r", range = 2..=8, ranks)]
    pub ranks: u32,
    #[key]
    pub layout: Layout,
    #[tune]
    pub dedup: bool,
}

impl ReluDispatch {
    fn dispatch(&self) -> Dispatch {
        let key = DispatchKey {
            hidden: self.hidden,
            experts: 4,
            topk: 2,
            tokens: 3,
            ranks: self.ranks,
            dtype: RowDtype::Fp16,
            row_bytes: 0,
            scale_bytes: 0,
            quantise: Quantise::None,
            scale_rounding: ScaleRounding::Floor,
            scale_layout: ScaleLayout::Row,
            hook: Hook::Expert,
            layout: self.layout,
            max_rows: 0,
            of_node: false,
            expert_slots: 0,
            replicas: 1,
            expert_load: false,
            ids: IdType::I32,
            phase: Phase::Both,
        };
        Dispatch {
            hook: Hook::Custom,
            warps: 2,
            send_blocks: 1,
            recv_blocks: 2,
            group_warps: 1,
            vectors: 1,
            chunk: 2,
            dedup: self.dedup,
            // Of packets, combine awaits that all ranks are ready, and there is none here.
            protocol: Protocol::Flags,
            ..Dispatch::with_defaults(&key).expect("the problem is a small one")
        }
    }
}

impl Legal for ReluDispatch {
    fn legal(&self) -> Result<(), Illegal> {
        self.dispatch().fits()
    }
}

#[derive(KernelArgs)]
#[args(config = ReluDispatch)]
pub struct ReluArgs {
    #[group(|c| c.dispatch())]
    all: DispatchArgs,
}

/// Brings rows without their negative elements.
#[kernel]
pub fn relu_dispatch(c: &ReluDispatch, a: &ReluArgs) {
    dispatch_with(&c.dispatch(), &a.all, &|row| row.maximum(0.0));
}

#[test]
fn a_hook_of_ones_own_in_a_family_of_ones_own() {
    for (layout, dedup) in
        [(Layout::ExpertMajor, true), (Layout::ExpertMajor, false), (Layout::RankMajor, true)]
    {
        let config = ReluDispatch { hidden: 40, ranks: 2, layout, dedup };
        let shape = config.dispatch().shape();
        let routing = Routing::uniform(&shape, &[3, 1], 0);
        let kernel = Arc::new(Compiled::new(verify(config.trace(32).unwrap()).unwrap()));
        let mut machine = Machine::new(2);
        machine.buffers_of(kernel.kernel()).unwrap();
        let value =
            |rank: u32, i: usize| if i.is_multiple_of(3) { -1.0 } else { (i + 500 * rank as usize) as f32 };
        let tokens = [0, 1].map(|rank| {
            let n = routing.ids[rank as usize].len() / 2;
            let row: Vec<f32> = (0..n * 40).map(|i| value(rank, i)).collect();
            Tokens { rows: peerwarp::harness::elements::encode(Dtype::Fp16, &row), ..Tokens::default() }
        });
        for rank in 0..2 {
            let (ids, weights) = (&routing.ids[rank as usize], &routing.weights[rank as usize]);
            let n = ids.len() as u32 / 2;
            machine.write(rank, "n", 0, &[n]).unwrap();
            machine.write(rank, "ids", 0, ids).unwrap();
            machine.write(rank, "weights", 0, weights).unwrap();
            machine.write(rank, "x", 0, &tokens[rank as usize].rows).unwrap();
            let numbers =
                Bindings::new().scalar("rows_there", Const::U32(n)).scalar("empty_id", Const::I32(-1));
            machine.launch(rank, &kernel, &numbers).unwrap();
        }
        let memory = machine.run(&Options::default()).unwrap().memory;
        for rank in 0..2 {
            let got = memory.read::<u8>(rank, "rows").unwrap();
            for (i, entry) in reference::dispatch(&shape, &routing, rank).rows.iter().enumerate() {
                let mut want = tokens[entry.source as usize].values(&shape, entry.token);
                want.iter_mut().for_each(|x| *x = x.max(0.0));
                let i = match layout.by_expert() {
                    true => i,
                    false => (entry.source * 3 + entry.token) as usize,
                };
                assert_eq!(
                    got[i * 80..(i + 1) * 80],
                    peerwarp::harness::elements::encode(Dtype::Fp16, &want),
                    "{entry:?}"
                );
            }
        }
    }
}

#[test]
fn the_shipped_family_has_no_custom_hook() {
    let layout = Layout::ExpertMajor;
    let mut config = ReluDispatch { hidden: 40, ranks: 2, layout, dedup: true }.dispatch();
    assert_eq!(
        config.legal().unwrap_err().to_string(),
        "`hook` = custom is not allowed: it must be raw or expert here: a hook of one's own needs a family of \
         one's own, see `dispatch_with`"
    );
    config.hook = Hook::Expert;
    config.legal().unwrap();
}
