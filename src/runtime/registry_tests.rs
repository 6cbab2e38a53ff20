use super::*;
use crate::harness::tune::example::{Layout, Put, PutKey};
use peerwarp_codegen::ir::Dtype;

fn config(hidden: u32, tokens: u32) -> Put {
    let key = PutKey { hidden, tokens, ranks: 2, dtype: Dtype::Bf16, layout: Layout::Rows };
    Put::with_defaults(&key).unwrap()
}

#[test]
fn exact_then_the_least_that_covers_then_jit_or_the_nearest() {
    let of = |tokens| config(64, tokens);
    let compiled = [of(128), of(8), of(32)];
    let registry = Registry::new(compiled.clone(), false);
    let select = |tokens| registry.select(&of(tokens).key());
    assert_eq!(select(32), Ok(Selected::Exact(&of(32))));
    assert_eq!(select(33), Ok(Selected::Covering(&of(128))));
    assert_eq!(select(1), Ok(Selected::Covering(&of(8))));
    let error = select(129).unwrap_err();
    assert_eq!(error.nearest, [of(128), of(32), of(8)].map(|c| c.variant_name()));
    let wide = registry.select(&config(128, 8).key()).unwrap_err();
    assert_eq!(wide.nearest[0], of(8).variant_name());
    assert!(registry.config(&config(128, 8).key()).unwrap_err().to_string().contains(&wide.nearest[0]));
    let jit = Registry::new(compiled, true);
    assert_eq!(jit.select(&of(129).key()), Ok(Selected::Jit));
    assert_eq!(jit.config(&of(129).key()).unwrap(), of(129));
    assert_eq!(jit.config(&of(9).key()).unwrap(), of(32));
}

#[test]
fn what_is_not_compiled_is_as_tuning_chose_it() {
    let small = Put { warps: 2, blocks: 2, ..config(64, 8) };
    let chosen = small.clone();
    let find = move |key: &PutKey| (chosen.key() == *key).then(|| chosen.clone());
    let plain = Registry::<Put>::new([], true);
    let tuned = plain.clone().with_tuned(Lookup::new("a table", find));
    assert_eq!(tuned.config(&small.key()).unwrap(), small);
    assert_eq!(plain.config(&small.key()).unwrap(), config(64, 8));
    assert_eq!(tuned.config(&config(64, 9).key()).unwrap(), config(64, 9));
    assert_ne!(plain.digest(), tuned.digest());
    assert_ne!(plain.digest(), Registry::new([small], true).digest());
}

/// A key of which more may be had in two ways.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Area(u64, u64);

impl CoverKey for Area {
    fn class(&self) -> Area {
        Area(0, 0)
    }
    fn covers(&self, asked: &Area) -> bool {
        self.0 >= asked.0 && self.1 >= asked.1
    }
    fn volume(&self) -> u128 {
        u128::from(self.0) * u128::from(self.1)
    }
    fn distance(&self, asked: &Area) -> (usize, u128) {
        (0, u128::from(self.0.abs_diff(asked.0) + self.1.abs_diff(asked.1)))
    }
}

#[test]
fn of_what_covers_in_several_ways_the_least_is_taken() {
    let mut all = Covering::default();
    for area in [Area(4, 4), Area(1, 9), Area(8, 1), Area(2, 5), Area(4, 2)] {
        all.add(area.clone(), area);
    }
    let found = |w, h| match all.find(&Area(w, h)) {
        Some(Selected::Exact(area) | Selected::Covering(area)) => Some(area.clone()),
        Some(Selected::Jit) | None => None,
    };
    assert_eq!(found(1, 1), Some(Area(8, 1)));
    assert_eq!(found(1, 2), Some(Area(4, 2)));
    assert_eq!(found(1, 3), Some(Area(1, 9)));
    assert_eq!(found(2, 3), Some(Area(2, 5)));
    // Exact even where something smaller covers.
    assert_eq!(found(4, 4), Some(Area(4, 4)));
    assert_eq!(found(5, 2), None);
}
