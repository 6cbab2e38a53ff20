//! Operations of ranks that choose by themselves. Threads stand for processes.

use std::thread::spawn;

use super::*;
use crate::runtime::mock::MockGpu;
use crate::runtime::net::{free_address, secret};
use crate::runtime::{Launched as Process, WorldOptions};

/// What comes of an operation of a variant on each rank, and what it leaves.
fn made(variants: [Scale; 2]) -> Vec<Result<(), RuntimeError>> {
    let machine = Machine::default();
    let (gpus, address) = (MockGpu::all(&machine, 2), free_address());
    let ranks = variants.into_iter().zip(0..).map(|(variant, rank)| {
        let (gpus, address) = (gpus.clone(), address.clone());
        spawn(move || {
            let secret = secret();
            let process = Process {
                launcher: "torchrun",
                rank,
                ranks: 2,
                local_rank: rank,
                node: None,
                address,
                secret,
            };
            let world = Arc::new(World::of_process(&gpus, &process, &WorldOptions::default()).unwrap());
            let launches = [LaunchSpec::new("scale", variant.into_variant())];
            Operation::new(&world, &launches, &Uncompiled).map(drop)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let made = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(machine.alive(), 0);
    made
}

#[test]
fn ranks_that_chose_other_variants_are_named_on_all_ranks() {
    assert!(made([config(true), config(true)]).iter().all(Result::is_ok));
    for error in made([config(false), config(true)]).into_iter().map(Result::unwrap_err) {
        let [first, other] = [false, true].map(|biased| config(biased).variant_name());
        let said = error.to_string();
        assert!(said.starts_with(&format!("scale of rank 1 is {other}, and {first} on rank 0")), "{said}");
        assert!(matches!(error, RuntimeError::OtherVariant { rank: 1, .. }), "{error:?}");
    }
}

#[test]
fn a_variant_that_one_rank_cannot_have_is_an_error_on_all() {
    let three = Scale { ranks: 3, ..config(false) };
    for error in made([config(false), three]).into_iter().map(Result::unwrap_err) {
        assert!(error.to_string().contains("= 3: 2, the size of the world"), "{error}");
    }
}
