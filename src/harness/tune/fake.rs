//! A machine for tests, on which it is known which candidate is best.

use std::time::Duration;

use peerwarp_codegen::family::{FieldRole, Variant};

use super::measure::{Measure, MeasureError, Task};
use super::{Candidate, Key};

/// Why a candidate cannot be timed, and which of its variants it is, if one.
pub(super) type Refuses = dyn Fn(&Candidate) -> Option<(Option<String>, String)>;

/// Kernels take the longer the more their fields differ from those of the best candidate.
pub(super) struct Fake {
    pub best: Candidate,
    /// What a step away from the best value of a field costs, as a part of the time.
    pub step: f64,
    /// Says why a candidate cannot be timed.
    pub refuses: Box<Refuses>,
    /// Says which candidates compute something else.
    pub wrong: Box<dyn Fn(&Candidate) -> bool>,
    /// How long each measurement takes, and the run-off.
    pub takes: Duration,
    pub run_off_takes: Duration,
    /// What was started.
    pub started: Vec<Key>,
    /// Candidates that will be measured next, and those that may be.
    pub prepared: Vec<Candidate>,
    pub precompiled: Vec<Candidate>,
    /// Those that were timed.
    pub asked: Vec<Candidate>,
    pub task: Option<Task>,
}

impl Fake {
    pub fn new(best: Candidate) -> Fake {
        let (refuses, wrong) = (Box::new(|_: &Candidate| None), Box::new(|_: &Candidate| false));
        let (takes, run_off_takes) = (Duration::ZERO, Duration::ZERO);
        Fake {
            best,
            step: 0.05,
            refuses,
            wrong,
            takes,
            run_off_takes,
            started: vec![],
            prepared: vec![],
            precompiled: vec![],
            asked: vec![],
            task: None,
        }
    }

    fn us(&self, kernel: &Variant, best: &Variant) -> f64 {
        let fields = kernel.family().fields().iter().zip(kernel.values().into_iter().zip(best.values()));
        let tuned = fields.filter(|(field, _)| field.role == FieldRole::Tune);
        let off = tuned.map(|(field, (own, best))| {
            field.allowed.position(own).abs_diff(field.allowed.position(best)) as f64
        });
        10.0 * (1.0 + self.step * off.sum::<f64>())
    }

    fn times(&self, candidate: &Candidate) -> Vec<f64> {
        candidate.variants().iter().zip(self.best.variants()).map(|(own, best)| self.us(own, best)).collect()
    }

    fn task(&self) -> &Task {
        self.task.as_ref().expect("a task was started")
    }
}

impl Measure for Fake {
    fn start(&mut self, task: &Task) {
        self.started.push(task.key());
        self.task = Some(task.clone());
    }

    fn prepare(&mut self, candidates: &[Candidate]) {
        self.prepared.extend(candidates.iter().cloned());
    }

    fn precompile(&mut self, candidates: &[Candidate]) {
        self.precompiled.extend(candidates.iter().cloned());
    }

    fn components(&mut self, candidate: &Candidate) -> Result<Vec<f64>, MeasureError> {
        let suite = self.task().suite;
        suite.components().check(candidate.variants()).expect("only legal candidates are measured");
        assert_eq!(Key::of(suite.name(), candidate.variants()), self.task().key());
        std::thread::sleep(self.takes);
        self.asked.push(candidate.clone());
        match (self.refuses)(candidate) {
            Some((variant, reason)) => Err(MeasureError::Refused { variant, reason }),
            None => Ok(self.times(candidate)),
        }
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureError> {
        // What was timed with other partners may fail together.
        if let Some((variant, reason)) = (self.refuses)(candidate) {
            return Err(MeasureError::Refused { variant, reason });
        }
        match (self.wrong)(candidate) {
            false => Ok(()),
            true => {
                let variant = Some(candidate.names()[0].clone());
                Err(MeasureError::Refused { variant, reason: "wrong result".into() })
            }
        }
    }

    fn rounds(&mut self, candidates: &[Candidate]) -> Result<Vec<Vec<f64>>, MeasureError> {
        std::thread::sleep(self.run_off_takes);
        let sum = |c: &Candidate| self.times(c).iter().sum::<f64>() - 4.0;
        // Later iterations take longer, all candidates alike.
        let times = |c: &Candidate| (0..5).map(|i| sum(c) * (1.0 + 0.1 * f64::from(i))).collect();
        Ok(candidates.iter().map(times).collect())
    }

    fn metrics(&self) -> Vec<String> {
        self.best.variants().iter().map(|v| v.family().name().to_owned()).collect()
    }

    fn limit_us(&self) -> Option<f64> {
        Some(7.5)
    }
}
