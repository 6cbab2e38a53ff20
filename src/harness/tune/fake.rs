//! A machine for tests, on which it is known which pair is best.

use std::time::Duration;

use peerwarp_codegen::family::Family;

use super::measure::{Alone, Measure, MeasureError};
use crate::families::moe::MoeShape;
use crate::families::moe::run::MoeTuning;
use crate::harness::tune::Pair;

/// Why a pair cannot be timed, and which of its kernels it is, if one.
pub(super) type Refuses = dyn Fn(&MoeTuning) -> Option<(Option<String>, String)>;

/// Kernels take the longer the more their fields differ from those of the best pair.
pub(super) struct Fake {
    pub best: MoeTuning,
    /// What a step away from the best value of a field costs, as a part of the time.
    pub step: f64,
    /// Says why a pair cannot be timed.
    pub refuses: Box<Refuses>,
    /// Says which pairs compute something else.
    pub wrong: Box<dyn Fn(&MoeTuning) -> bool>,
    /// How long each measurement takes, and the run-off.
    pub takes: Duration,
    pub run_off_takes: Duration,
    /// Pairs that are told to be measured next, and those that may be.
    pub prepared: Vec<Pair>,
    pub foreseen: Vec<Pair>,
    /// Names of the pairs that were timed.
    pub asked: Vec<(String, String)>,
}

impl Fake {
    pub fn new(best: MoeTuning) -> Fake {
        let (refuses, wrong) = (Box::new(|_: &MoeTuning| None), Box::new(|_: &MoeTuning| false));
        let (takes, run_off_takes) = (Duration::ZERO, Duration::ZERO);
        Fake {
            best,
            step: 0.05,
            refuses,
            wrong,
            takes,
            run_off_takes,
            prepared: vec![],
            foreseen: vec![],
            asked: vec![],
        }
    }

    fn us<F: Family>(&self, kernel: &F, best: &F) -> f64 {
        let off = |(at, field): (usize, &peerwarp_codegen::family::FieldInfo)| {
            let at = F::key_fields().len() + at;
            let [own, best] = [kernel, best].map(|k| field.allowed.position(k.values()[at]));
            own.abs_diff(best) as f64
        };
        10.0 * (1.0 + self.step * F::tune_fields().iter().enumerate().map(off).sum::<f64>())
    }

    fn times(&self, tuning: &MoeTuning) -> Alone {
        Alone {
            dispatch: self.us(&tuning.dispatch, &self.best.dispatch),
            combine: self.us(&tuning.combine, &self.best.combine),
        }
    }
}

impl Measure for Fake {
    fn prepare(&mut self, tunings: &[MoeTuning]) {
        self.prepared.extend(tunings.iter().map(Pair::of));
    }

    fn foresee(&mut self, tunings: &[MoeTuning]) {
        self.foreseen.extend(tunings.iter().map(Pair::of));
    }

    fn alone(&mut self, tuning: &MoeTuning) -> Result<Alone, MeasureError> {
        tuning.check(&tuning.dispatch.shape()).expect("only legal pairs are measured");
        std::thread::sleep(self.takes);
        self.asked.push((tuning.dispatch.variant_name(), tuning.combine.variant_name()));
        match (self.refuses)(tuning) {
            Some((variant, reason)) => Err(MeasureError::Refused { variant, reason }),
            None => Ok(self.times(tuning)),
        }
    }

    fn check(&mut self, tuning: &MoeTuning) -> Result<(), MeasureError> {
        // What was timed with other partners may fail together.
        if let Some((variant, reason)) = (self.refuses)(tuning) {
            return Err(MeasureError::Refused { variant, reason });
        }
        match (self.wrong)(tuning) {
            false => Ok(()),
            true => {
                let variant = Some(tuning.dispatch.variant_name());
                Err(MeasureError::Refused { variant, reason: "wrong result".into() })
            }
        }
    }

    fn round_trips(&mut self, tunings: &[MoeTuning]) -> Result<Vec<Vec<f64>>, MeasureError> {
        std::thread::sleep(self.run_off_takes);
        let sum = |t: &MoeTuning| self.times(t).dispatch + self.times(t).combine - 4.0;
        // Later iterations take longer, all pairs alike.
        let times = |t: &MoeTuning| (0..5).map(|i| sum(t) * (1.0 + 0.1 * f64::from(i))).collect();
        Ok(tunings.iter().map(times).collect())
    }

    fn limit_us(&self, _: &MoeShape) -> Option<f64> {
        Some(7.5)
    }
}
