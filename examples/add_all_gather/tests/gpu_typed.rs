//! The first launch of a program of one's own: slices of cudarc, checked and launched. Where there is one GPU, both ranks share
//! it; without any, the test says that it was skipped.

use std::error::Error;
use std::sync::Arc;

use add_all_gather::AddAllGather;
use add_all_gather::kernel::AddLaunch;
use peerwarp::harness::workload::Turn;
use peerwarp::prelude::*;
use peerwarp::runtime::cache::ModuleCache;
use peerwarp::runtime::cudarc::driver::CudaContext;
use peerwarp::runtime::image::Jit;
use peerwarp::runtime::op::Op;
use peerwarp::runtime::{World, WorldOptions, cuda};

const ROUNDS: u32 = 5;

#[test]
fn sums_of_two_gpus_are_right_to_the_bit() -> Result<(), Box<dyn Error>> {
    let gpus = match cuda::gpus() {
        Ok(gpus) => gpus.into_iter().cycle().take(2).collect::<Vec<_>>(),
        Err(why) => {
            eprintln!("skipped: {why}");
            return Ok(());
        }
    };
    let options = WorldOptions { share_gpus: true, ..WorldOptions::default() };
    let world = Arc::new(World::of_gpus(&gpus, &options)?);
    let config = AddAllGather::from_text("elements=100001 ranks=2 dtype=f32")?;
    let images = Jit::new(ModuleCache::of_user())?;
    let mut op = Op::<AddAllGather>::new(&world, &config, &images)?;

    let streams: Vec<_> = (0..2)
        .map(|rank| CudaContext::new(gpus[rank].info().ordinal as usize)?.new_stream())
        .collect::<Result<_, _>>()?;
    // One round after the other, without waiting: this rank's kernels wait for the other rank's.
    let mut kept = vec![];
    for round in 0..ROUNDS {
        for (rank, stream) in (0..).zip(&streams) {
            let [x, y] = config.vectors(Turn { seed: 7, rank, round });
            let (x, y) = (stream.clone_htod(&x)?, stream.clone_htod(&y)?);
            let mut out = stream.clone_htod(&vec![f32::NAN; config.gathered() as usize])?;
            op.rank(rank).launch(stream, AddLaunch { x: &x, y: &y, out: &mut out })?;
            kept.push((round, stream, x, y, out));
        }
    }
    for (round, stream, _, _, out) in &kept {
        let sums: Vec<f32> = stream.clone_dtoh(out)?;
        stream.synchronize()?;
        world.check()?;
        let expected = config.sums(Turn { seed: 7, rank: 0, round: *round });
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(bits(&sums) == bits(&expected), "round {round}");
    }

    // What does not fit is an error, and nothing is launched.
    let stream = &streams[0];
    let x = stream.alloc_zeros::<f32>(config.elements as usize)?;
    let mut short = stream.alloc_zeros::<f32>(config.elements as usize)?;
    let error = op.rank(0).launch(stream, AddLaunch { x: &x, y: &x, out: &mut short }).unwrap_err();
    assert!(error.to_string().contains("out"), "{error}");
    Ok(())
}
