//! Selecting a variant does not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeKey, MoeRegistry};
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::runtime::registry::Selected;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(act: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    act();
    COUNT.get() - before
}

#[test]
fn of_selection() {
    let shape =
        |tokens| MoeShape { hidden: 64, experts: 8, topk: 2, tokens, ranks: 2, dtype: RowDtype::Bf16 };
    let registry = MoeRegistry::new([8, 64].map(|t| MoeTuning::defaults(&shape(t)).unwrap()), true);
    let keys = [8, 9, 65].map(|t| MoeKey::new(shape(t)));
    let selected = |i: usize| registry.select(&keys[i]).unwrap();
    assert_eq!(count(|| assert!(matches!(selected(0), Selected::Exact(_)))), 0);
    assert_eq!(count(|| assert!(matches!(selected(1), Selected::Covering(_)))), 0);
    assert_eq!(count(|| assert!(matches!(selected(2), Selected::Jit))), 0);
    // That it counts at all.
    assert!(count(|| drop(std::hint::black_box(Box::new(1)))) > 0);
}
