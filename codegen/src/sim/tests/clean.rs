//! Kernels without mistakes run under every schedule and compute what they should.

use super::*;
use crate::ir::{samples, verify};

/// `exchange` with inputs, launched `times` times, with new inputs before each launch and a check after it.
fn exchange(times: u32) -> Machine {
    let kernel = Arc::new(Compiled::new(verify(samples::exchange()).unwrap()));
    let mut machine = Machine::new(4);
    machine.buffers_of(kernel.kernel()).unwrap();
    let input = |launch: u32, rank: u32, i: u32| (launch * 1000 + rank * 100 + i) as f32;
    for launch in 0..times {
        for rank in 0..4 {
            machine
                .host(rank, "fill x", move |m| {
                    let x: Vec<f32> = (0..96).map(|i| input(launch, m.rank(), i)).collect();
                    Ok(m.write("x", 0, &x)?)
                })
                .unwrap();
            machine.launch(rank, &kernel, &Bindings::new()).unwrap();
            machine
                .host(rank, "compare y", move |m| {
                    let y = m.read::<f32>("y", 0..96)?;
                    let want = |i| (0..4).map(|r| input(launch, r, i)).sum::<f32>();
                    let wrong = (0..96).find(|&i| y[i as usize] != want(i));
                    wrong.map_or(Ok(()), |i| Err(format!("y[{i}] is {}", y[i as usize])))
                })
                .unwrap();
        }
    }
    machine
}

#[test]
fn exchange_is_clean() {
    let machine = exchange(3);
    for options in schedules() {
        let outcome = machine.run(&options).unwrap_or_else(|f| panic!("{f}"));
        let counts = &outcome.report.kernels["exchange"];
        assert_eq!((counts.launches, counts.puts, counts.waits), (12, 48, 48));
        assert_eq!(counts.bytes, vec![vec![3 * 96 * 4; 4]; 4]);
        assert_eq!(counts.signals, vec![vec![3; 4]; 4]);
        assert_eq!(counts.bytes_on_wire(), 12 * 3 * 96 * 4);
        assert_eq!(outcome.report.max_resident_blocks, 1);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let machine = exchange(2);
    let mut all = vec![];
    for options in schedules() {
        let reports = [(); 2].map(|()| machine.run(&options).unwrap_or_else(|f| panic!("{f}")).report);
        assert_eq!(reports[0], reports[1]);
        all.push(reports[0].picks);
    }
    all.sort_unstable();
    all.dedup();
    assert!(all.len() > 10, "seeds differ");
}
