//! Two operations of one world at once, each on streams of its own, as two batches that take turns.

use std::thread;

use peerwarp::families::moe::RowDtype;
use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::runtime::WorldOptions;
use serde_json::json;

use crate::{apart, gpus, options, report, right, shape, two};

#[test]
fn two_operations_on_two_streams_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &WorldOptions { launches_at_once: 2, ..options() });
    let most = world.blocks_per_launch().unwrap();
    let mut cases = 0;
    for (tokens, n) in [(8, [8, 5]), (96, [96, 31]), (600, [600, 222])] {
        let tuning = |layout| {
            let shape = shape(2048, tokens, RowDtype::Bf16);
            MoeTuning::defaults_with(&shape, Hook::Expert, layout).unwrap().within(most)
        };
        // A hundred rounds of each are under way together, looked at one by one and in graphs.
        let mut sessions = [(Layout::RankMajor, 3), (Layout::ExpertMajor, 4)]
            .map(|(layout, seed)| apart(&world, &tuning(layout), &n, 100, seed));
        thread::scope(|scope| {
            for session in &mut sessions {
                scope.spawn(|| right(session, 20));
            }
        });
        // Both go when both are done: to free memory is to wait for the GPU, and so for launches that wait for ranks yet to launch.
        cases += 2;
    }
    report("two streams", json!({ "cases": cases, "blocks a launch": most }));
}
