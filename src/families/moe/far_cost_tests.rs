use super::*;

fn model() -> Model<'static> {
    Model::new(&INPUTS)
}

fn near(got: f64, want: f64, within: f64) {
    assert!((got - want).abs() <= within, "{got} is not {want}");
}

#[test]
fn each_way_is_calibrated_by_published_rows_alone() {
    let model = model();
    assert_eq!(model.paths.len(), INPUTS.paths.len());
    for (name, own) in &model.paths {
        let FarPath { gbps, puts_per_us, .. } = own.path;
        // No card of 400 Gb/s moves more.
        assert!((30.0..=50.0).contains(&gbps), "{name}: {gbps} GB/s");
        assert!(puts_per_us.is_finite() && puts_per_us > 1.0, "{name}: {puts_per_us} puts a us");
        assert!(own.fixed_us.iter().all(|us| *us > 0.0), "{name}: {:?}", own.fixed_us);
    }
    for row in &INPUTS.rows {
        assert!(model.paths.contains_key(row.path.as_str()), "{}: {}", row.system, row.path);
        assert!(!row.source.is_empty() && row.ranks.is_multiple_of(INPUTS.problem.node), "{}", row.system);
        // A fixed part is what a row has beside its bytes, and its puts are no slower than they.
        if row.usage == Usage::Fixed {
            model.errors(row).into_iter().for_each(|error| near(error, 0.0, 1e-9));
        }
    }
    for way in &INPUTS.paths {
        let of = |usage| INPUTS.rows.iter().filter(|row| row.path == way.name && row.usage == usage).count();
        assert_eq!((of(Usage::Fixed), of(Usage::Rate)), (1, 1), "{}", way.name);
    }
}

#[test]
fn rows_are_those_of_uniform_routing() {
    let case = INPUTS.problem;
    // Half of all experts are on the other node of two.
    near(case.rows_by_expert(16), 512.0, 1e-9);
    // None of eight experts is among the other node's 128 of 256.
    let none = (0..8).map(|i| f64::from(128 - i) / f64::from(256 - i)).product::<f64>();
    near(case.rows_by_node(16), 128.0 * (1.0 - none), 1e-9);
    assert!(case.rows_by_node(64) < 7.0 * 128.0 && case.rows_by_node(64) < case.rows_by_expert(64));
    assert_eq!(case.row_bytes(16), [7168 + 4 * 56, 2 * 7168]);
    // On one rank of sixteen: all tokens of all ranks, each to 16 * p ranks, 7 of 8 of them other ones.
    near(case.rows_forwarded(16), 128.0 * 16.0 * case.reached(16) * 7.0 / 8.0, 1e-9);
}

#[test]
fn what_is_predicted_moves_with_each_input() {
    let model = model();
    for (name, own) in &model.paths {
        let us = |own: &Calibrated, ranks| model.ours(own, ranks).map(|parts| parts.us());
        let slower = |path: FarPath| Calibrated { path, ..*own };
        let whole = us(own, 64);
        let half = us(&slower(FarPath { gbps: own.path.gbps / 2.0, ..own.path }), 64);
        let fewer = us(&slower(FarPath { puts_per_us: own.path.puts_per_us / 4.0, ..own.path }), 64);
        let later = us(&Calibrated { fixed_us: own.fixed_us.map(|us| us + 10.0), ..*own }, 64);
        for phase in PHASES {
            assert!(half[phase] > whole[phase] && fewer[phase] > whole[phase], "{name}, {phase}");
            near(later[phase], whole[phase] + 10.0, 1e-9);
        }
        assert!(RANKS.windows(2).all(|two| us(own, two[0])[0] < us(own, two[1])[0]), "{name}");
    }
}

/// The figures that `docs/explanation/far-channels.md` quotes. A change of inputs changes the page.
#[test]
fn the_model_says_what_the_page_says() {
    let model = model();
    let both = |name: &str| {
        RANKS.map(|ranks| model.ours(&model.paths[name], ranks).iter().map(Parts::us).sum::<f64>().round())
    };
    assert_eq!(both("ConnectX-7, GPU-initiated"), [182.0, 274.0, 382.0]);
    assert_eq!(both("ConnectX-7, proxy"), [157.0, 260.0, 380.0]);
    assert_eq!(both("EFA, proxy"), [293.0, 402.0, 528.0]);
    let percent = |part: f64| (100.0 * part).round();
    let held = model.held_out().map(|s| (percent(s.mean), percent(s.worst)));
    assert_eq!(held, [(4.0, 13.0), (34.0, -70.0), (33.0, -41.0)]);
}
