//! Every change of one operation that changes what a far kernel does is found.

use peerwarp_codegen::dsl::prelude::Publish;
use peerwarp_codegen::ir::mutate::{every, mutate};
use peerwarp_codegen::sim::{Options, Strategy};

use super::world::{Post, launched, traced};

/// Whether some schedule finds it.
fn is_found(machine: &peerwarp_codegen::sim::Machine) -> bool {
    (0..8).any(|n: u64| {
        let strategy = if n.is_multiple_of(2) { Strategy::Random } else { Strategy::Adversarial };
        machine.run(&Options { seed: n / 2, strategy, max_steps: 4_000_000, ..Options::default() }).is_err()
    })
}

#[test]
fn every_mutant_is_found_but_those_that_change_nothing() {
    let mut alive = vec![];
    let mut planted = 0;
    for (publish, gathers) in [(Publish::Each, false), (Publish::Batch, false), (Publish::Each, true)] {
        let config = Post { gathers, ..Post::new(publish) };
        let kernel = traced(&config).unwrap();
        for mutant in every(&kernel) {
            let Ok(kernel) = mutate(&kernel, &mutant.mutation) else { continue };
            planted += 1;
            if !is_found(&launched(kernel, &config, 5)) {
                let role = mutant.role.as_deref().unwrap_or("before the roles");
                alive.push(format!(
                    "{publish:?}{} {role}, {}: {}",
                    if gathers { ", gathers" } else { "" },
                    mutant.op,
                    mutant.change
                ));
            }
        }
    }
    assert!(alive.is_empty(), "of {planted}: {alive:#?}");
    assert!(planted > 100, "{planted}");
}
