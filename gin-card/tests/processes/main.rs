//! Two processes that put to each other through the card's shared library, as NCCL's proxy does: in host memory, and in that of
//! a GPU that the test's own driver plays.

mod card;
mod driver;
mod parent;
mod rank;

use parent::Processes;
use rank::{Job, Kernel, ROWS};

/// What a process does as one rank. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    if let Some(job) = Job::here() {
        rank::run(&job);
    }
}

const HOST: Job = Job { kernel: Kernel::Each, rounds: 1, version: 16, on_gpu: false };

/// What both ranks of an exchange say at its end, and what they wrote to standard error.
fn exchange(job: &Job, variables: &[(&str, &str)]) -> ([String; 2], [String; 2]) {
    let mut both = Processes::start(job, variables);
    both.hear("ready");
    both.tell("go");
    let results = both.hear("result ");
    both.tell("close");
    both.hear("closed");
    (results, both.end())
}

const REORDER: [(&str, &str); 2] = [("PEERWARP_GIN_REORDER_SEED", "7"), ("PEERWARP_GIN_SPREAD_US", "2000")];

#[test]
fn rows_arrive_in_order() {
    for (kernel, rounds) in [(Kernel::Each, 40), (Kernel::StrongBatch, 40), (Kernel::Long, 3)] {
        let (results, said) = exchange(&Job { kernel, rounds, ..HOST }, &[]);
        assert_eq!(results, ["right"; 2], "{kernel:?}");
        assert_eq!(said, ["", ""]);
    }
}

#[test]
fn older_tables_do_the_same() {
    for version in [15, 14] {
        for kernel in [Kernel::Each, Kernel::StrongBatch] {
            assert_eq!(
                exchange(&Job { kernel, rounds: 5, version, ..HOST }, &[]).0,
                ["right"; 2],
                "{version}"
            );
        }
    }
}

#[test]
fn rows_arrive_late() {
    let (results, _) =
        exchange(&Job { kernel: Kernel::Each, rounds: 5, ..HOST }, &[("PEERWARP_GIN_DELAY_US", "3000")]);
    assert_eq!(results, ["right"; 2]);
    // Each round takes as long as its puts are late, also when they are read at once.
    let (results, _) =
        exchange(&Job { kernel: Kernel::Timed, rounds: 5, ..HOST }, &[("PEERWARP_GIN_DELAY_US", "3000")]);
    for result in results {
        let us: u64 = result.strip_prefix("right us ").unwrap().parse().unwrap();
        assert!(us >= 15_000, "{us} us for five rounds of 3000 us");
    }
}

#[test]
fn right_kernels_bear_reordering() {
    for (kernel, rounds) in [(Kernel::Each, 10), (Kernel::StrongBatch, 10), (Kernel::Long, 3)] {
        let (results, _) = exchange(&Job { kernel, rounds, ..HOST }, &REORDER);
        assert_eq!(results, ["right"; 2], "{kernel:?}");
    }
}

#[test]
fn a_weak_end_of_a_batch_passes_in_order_and_is_caught_when_reordered() {
    let job = Job { kernel: Kernel::WeakBatch, rounds: 10, ..HOST };
    assert_eq!(exchange(&job, &[]).0, ["right"; 2]);
    for result in exchange(&job, &REORDER).0 {
        let (rounds, rows) = result.strip_prefix("wrong rounds ").unwrap().split_once(" rows ").unwrap();
        let (rounds, rows): (u64, u64) = (rounds.parse().unwrap(), rows.parse().unwrap());
        assert!(rounds >= 8 && rows >= rounds, "{result}");
    }
}

#[test]
fn one_signal_for_two_rounds_passes_in_order_and_is_caught_when_reordered() {
    let job = Job { kernel: Kernel::OneSignal, rounds: 60, ..HOST };
    assert_eq!(exchange(&job, &[]).0, ["right"; 2]);
    let (results, _) = exchange(&job, &REORDER);
    assert!(results.iter().any(|result| result.starts_with("wrong rounds ")), "{results:?}");
}

#[test]
fn a_dropped_put_is_named_by_the_bounded_wait() {
    let put = 3 * ROWS + 5;
    let (results, said) = exchange(
        &Job { kernel: Kernel::Each, rounds: 10, ..HOST },
        &[("PEERWARP_GIN_DROP_PUT", &put.to_string())],
    );
    for (rank, (result, said)) in results.iter().zip(&said).enumerate() {
        // Of the two rounds of this bank, all rows but one.
        assert_eq!(*result, format!("timeout round 3 count {} of {}", 2 * ROWS - 1, 2 * ROWS));
        assert!(
            said.contains(&format!("put {put} of rank {} never lands, as asked for", 1 - rank)),
            "{said}"
        );
    }
}

#[test]
fn nothing_that_follows_a_dropped_put_in_order_lands() {
    let (results, said) = exchange(
        &Job { kernel: Kernel::StrongBatch, rounds: 10, ..HOST },
        &[("PEERWARP_GIN_DROP_PUT", &(ROWS + 1).to_string())],
    );
    assert_eq!(results, [(); 2].map(|()| format!("timeout round 1 count 0 of {ROWS}")));
    assert!(
        said.iter().all(|said| said.contains("what has to follow a lost put never lands either")),
        "{said:?}"
    );
}

/// The driver is the test's own: `driver.c`. Its streams lag behind, so that bytes that are used too early are wrong.
#[test]
fn rows_of_a_gpu_arrive() {
    for (kernel, rounds) in [(Kernel::Each, 8), (Kernel::StrongBatch, 8), (Kernel::Long, 3)] {
        for variables in [&[][..], &REORDER] {
            let (results, said) = exchange(&Job { kernel, rounds, on_gpu: true, ..HOST }, variables);
            assert_eq!((results, said), (["right"; 2].map(String::from), [(); 2].map(|()| String::new())));
        }
    }
}

#[test]
fn a_weak_end_of_a_batch_of_a_gpu_is_caught_when_reordered() {
    let job = Job { kernel: Kernel::WeakBatch, rounds: 10, on_gpu: true, ..HOST };
    for result in exchange(&job, &REORDER).0 {
        assert!(result.starts_with("wrong rounds "), "{result}");
    }
}

#[test]
fn a_killed_process_is_named() {
    let mut both = Processes::start(&Job { kernel: Kernel::Each, rounds: u64::MAX, ..HOST }, &[]);
    both.hear("ready");
    both.tell("go");
    both.hear("busy");
    let killed = both.kill(1);
    let result = both.hear_one(0, "result ");
    assert_eq!(result, "failed iputSignal 6, test 6, progress 6, has error: true");
    both.tell("close");
    // Closing gives everything back nevertheless: the child looks.
    both.hear_one(0, "closed");
    let [said, _] = both.end_one(0);
    assert!(said.contains(&format!("rank 1, process {killed}, ended without closing")), "{said}");
}

#[test]
fn bad_settings_are_named() {
    for (name, value, words) in [
        (
            "PEERWARP_GIN_DELAY_US",
            "soon",
            "PEERWARP_GIN_DELAY_US is `soon`, and whole numbers from 0 to 1000000",
        ),
        ("PEERWARP_GIN_DORP_PUT", "1", "PEERWARP_GIN_DORP_PUT is no setting of the card"),
    ] {
        let mut both = Processes::spawn(&Job { kernel: Kernel::Each, rounds: 1, ..HOST }, &[(name, value)]);
        assert_eq!(both.hear("refused "), ["4"; 2]);
        let said = both.end();
        assert!(said.iter().all(|said| said.contains(words)), "{said:?}");
    }
}

#[test]
fn wrong_calls_are_errors() {
    let mut both = Processes::start(&Job { kernel: Kernel::Wrong, rounds: 1, ..HOST }, &[]);
    both.hear("ready");
    both.tell("go");
    assert_eq!(both.hear("result "), ["right"; 2]);
    both.tell("close");
    both.hear("closed");
    for said in both.end() {
        for words in [
            "the rank of a put is 2, and 0 to 1 are allowed",
            "lie outside of region 1",
            "is no region of this card",
            "is no context of this card",
            "is no request of this card",
            "the operation of a signal is 3, and 1 (increment) and 2 (add) are allowed",
            "`iget` is not offered: let the other rank put",
            "a region of GPU memory is registered, and `connect` saw no current CUDA context",
            "the type of memory is 9, and 1 (host) and 2 (GPU) are allowed",
            "the result of `iput` is null",
            "the device is 1, and 0 to 0 are allowed",
        ] {
            assert!(said.contains(words), "{words}\n{said}");
        }
    }
}
