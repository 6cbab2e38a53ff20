//! One rank alone on a GPU: a collective copies, MoE has its own experts, and a product needs no other rank.

use std::sync::Arc;

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::families::matmul::{AllGatherMatmul, Matmul, MatmulReduceScatter};
use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::runtime::World;
use serde_json::json;

use super::cases::cases_of;
use super::{apart, drawn, gpus, one_launch, options, report, right, session};

#[test]
fn families_of_one_rank_are_right_to_the_bit() {
    cases_of(1, "one rank", 22, |cases| {
        for dtype in ["f32", "bf16"] {
            for protocol in ["packets", "flags"] {
                let key = format!("elements=65539 ranks=1 dtype={dtype} protocol={protocol}");
                cases.run::<AllReduce>(&key);
                cases.run::<AllGather>(&key);
                cases.run::<ReduceScatter>(&key);
                cases.run::<AllToAll>(&key);
                cases.run::<Broadcast>(&format!("{key} root=0"));
            }
            cases.run::<RegisteredAllReduce>(&format!("elements=65539 ranks=1 dtype={dtype}"));
            cases.run::<RaggedAllToAll>(&format!("capacity=1003 ranks=1 dtype={dtype}"));
        }
        for dtype in ["bf16", "fp16"] {
            let key = format!("m=320 n=264 k=136 dtype={dtype}");
            cases.run::<Matmul>(&key);
            cases.run::<AllGatherMatmul>(&format!("{key} ranks=1 gathered=true"));
            cases.run::<MatmulReduceScatter>(&format!("{key} ranks=1 algorithm=pull"));
            cases.run::<MatmulReduceScatter>(&format!("{key} ranks=1 algorithm=push"));
        }
    });
}

#[test]
fn moe_of_one_rank_is_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = Arc::new(World::of_gpus(&gpus[..1], &options()).unwrap());
    let mut cases = 0;
    for (tokens, dtype) in [(8, RowDtype::Bf16), (300, RowDtype::Bf16), (300, RowDtype::Fp8)] {
        let shape = MoeShape { hidden: 1024, experts: 16, topk: 4, tokens, ranks: 1, dtype };
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap();
            right(&mut apart(&world, &tuning, &[tokens - 3], 3, cases), 0);
            cases += 1;
        }
        let (problem, config) = (drawn(shape, &[tokens], 3, cases), one_launch(&world, &shape));
        right(&mut session(&world, MoeRounds::in_one_launch(&problem, &config, 3).unwrap()), 50);
    }
    report("moe of one rank", json!({ "cases": cases }));
}
