//! `peerwarp bench`, as far as it goes without GPUs.

use super::support::Place;

#[test]
fn without_gpus_the_error_says_what_is_missing() {
    let place = Place::new();
    // Drivers are looked for where the loader looks; a machine that has them is no place for this test.
    if peerwarp::runtime::cuda::gpus().is_ok() {
        return eprintln!("skipped: there are GPUs");
    }
    for args in
        ["bench --gpumode --ranks 2", "bench --model deepseek-v3 --tokens 1,8 --dtype bf16,fp8 --ranks 2"]
    {
        let ran = place.say(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
        assert!(ran.stderr.contains("driver"), "{}", ran.stderr);
    }
}

#[test]
fn a_process_for_each_rank_is_one_of_so_many_and_has_no_peers() {
    let torchrun = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("PEERWARP_SECRET", "the secret of a world that is never formed"),
    ];
    for (args, said) in [
        (
            "bench --family all_reduce --nodes 2 --ranks 4 elements=1024 dtype=bf16",
            "--ranks = 4: contradicts 2 processes, as torchrun started them",
        ),
        ("bench --model glm-4.5 --ranks 4", "--ranks = 4: contradicts 2 processes, as torchrun started them"),
        (
            "bench --model glm-4.5 --ranks 2 --compare",
            "--compare = true: contradicts a process for each rank, as torchrun started them",
        ),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        let ran = Place::new().run_with(&args, &torchrun);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn processes_without_a_secret_are_told_which_variable_has_it() {
    let torchrun = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];
    let ran = Place::new().run_with(&["bench", "--model", "glm-4.5", "--ranks", "2"], &torchrun);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
    assert!(ran.stderr.contains("PEERWARP_SECRET under torchrun"), "{}", ran.stderr);
}
