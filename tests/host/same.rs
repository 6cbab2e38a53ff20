//! One kernel in the simulator and as emitted text: the same results, and findings in both or in neither.

use std::collections::BTreeSet;
use std::sync::Arc;

use peerwarp_codegen::ir::{Kernel, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options, Strategy};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job};
use crate::moe::WAIT_BUDGET_NS;

/// Seeds from here on starve a part of the machine, as the simulator's adversarial strategy does.
pub const ADVERSARIAL: u64 = 1 << 32;

/// Kernels with inputs and outputs. All ranks launch the same ones.
pub struct Case {
    pub name: String,
    /// The kernels for a language, launched one after the other.
    pub kernels: Box<dyn Fn(Language) -> Vec<Kernel> + Sync>,
    /// How often all of them are launched.
    pub rounds: u32,
    /// Rank, buffer and content.
    pub inputs: Vec<(u32, String, Vec<u8>)>,
    /// Buffers that are compared.
    pub outputs: Vec<String>,
}

/// What the runs of a case leave.
#[derive(Debug, PartialEq)]
pub enum Left {
    /// The outputs of all ranks, one after the other, of every run.
    Same(Vec<u8>),
    /// Nothing to compare: what is wrong, in words.
    Wrong(BTreeSet<String>),
}

impl Case {
    pub fn new(
        name: impl Into<String>,
        rounds: u32,
        kernels: impl Fn(Language) -> Vec<Kernel> + Sync + 'static,
    ) -> Case {
        Case { name: name.into(), kernels: Box::new(kernels), rounds, inputs: vec![], outputs: vec![] }
    }

    pub fn input<T: bytemuck::Pod>(mut self, rank: u32, name: &str, content: &[T]) -> Case {
        self.inputs.push((rank, name.into(), bytemuck::cast_slice(content).to_vec()));
        self
    }

    pub fn output(mut self, name: &str) -> Case {
        self.outputs.push(name.into());
        self
    }

    fn ranks(&self) -> u32 {
        (self.kernels)(Language::Cuda)[0].ranks
    }

    /// Bytes of the outputs, in order.
    fn sizes(&self, kernels: &[Kernel]) -> Vec<u64> {
        let params = || kernels.iter().flat_map(|k| &k.params);
        let size = |name: &String| {
            params().filter(|p| p.name == *name).map(|p| u64::from(p.element_bytes()) * p.len).max()
        };
        self.outputs.iter().map(|name| size(name).unwrap_or_else(|| panic!("no buffer {name}"))).collect()
    }

    /// What the simulator says, under random and adversarial delays: the outputs if no seed finds anything, else what is found.
    pub fn simulated(&self, language: Language, seeds: u64) -> Left {
        let kernels = (self.kernels)(language);
        let sizes = self.sizes(&kernels);
        let mut machine = Machine::new(self.ranks());
        kernels.iter().for_each(|k| machine.buffers_of(k).unwrap_or_else(|e| panic!("{e}")));
        for (rank, name, content) in &self.inputs {
            machine.write(*rank, name, 0, content).unwrap_or_else(|e| panic!("{e}"));
        }
        let compiled = kernels.iter().map(|k| {
            let verified = verify(k.clone()).unwrap_or_else(|e| panic!("{}: {e}", self.name));
            Arc::new(Compiled::new(verified))
        });
        let compiled: Vec<_> = compiled.collect();
        for kernel in (0..self.rounds).flat_map(|_| &compiled) {
            machine.launch_all(kernel, &Bindings::new()).unwrap_or_else(|e| panic!("{e}"));
        }
        let (mut found, mut left) = (BTreeSet::new(), None);
        for (seed, strategy) in (0..seeds).flat_map(|s| [(s, Strategy::Random), (s, Strategy::Adversarial)]) {
            match machine.run(&Options::default().with_seed(seed).with_strategy(strategy)) {
                Err(findings) => found.extend(findings.list.iter().map(|f| f.kind.name().to_owned())),
                Ok(outcome) => {
                    let read = |rank, name: &str, bytes: u64| {
                        let all = outcome.memory.read::<u8>(rank, name).unwrap_or_else(|e| panic!("{e}"));
                        all[..bytes as usize].to_vec()
                    };
                    let of = |rank| self.outputs.iter().zip(&sizes).flat_map(move |(n, &b)| read(rank, n, b));
                    let all: Vec<u8> = (0..self.ranks()).flat_map(of).collect();
                    if left.get_or_insert_with(|| all.clone()) != &all {
                        found.insert("other results under another seed".into());
                    }
                }
            }
        }
        match left {
            Some(left) if found.is_empty() => Left::Same(left),
            Some(_) | None => Left::Wrong(found),
        }
    }

    /// The same of the emitted text, with every access checked.
    pub fn executed(&self, language: Language, seeds: u64) -> Left {
        let (target, kernels) = (language.target(), (self.kernels)(language));
        let sizes = self.sizes(&kernels);
        let mut job = Job::new(language, self.ranks());
        kernels.iter().for_each(|k| job.buffers_of(k, str::to_owned));
        let emitted: Vec<Emitted> = kernels
            .into_iter()
            .map(|kernel| {
                let info = EmitInfo { command: "a test".into() };
                let verified = verify(kernel.clone()).unwrap_or_else(|e| panic!("{}: {e}", self.name));
                let source = emit(&verified, target, &info).unwrap_or_else(|e| panic!("{}: {e}", self.name));
                Emitted { kernel, source }
            })
            .collect();
        let launch = |e| job.launch(e, str::to_owned, |n| panic!("no scalar {n}"), WAIT_BUDGET_NS);
        let launches: Vec<usize> = emitted.iter().map(launch).collect();
        for (rank, name, content) in &self.inputs {
            job.write(*rank, name, 0, content);
        }
        for rank in 0..self.ranks() {
            let all = (0..self.rounds).flat_map(|_| &launches);
            all.for_each(|&launch| job.run_on(rank, launch));
            let outputs = self.outputs.iter().zip(&sizes);
            outputs.for_each(|(name, &bytes)| job.read(rank, name, 0..bytes));
        }
        let texts: Vec<Text> = emitted.iter().map(|e| Text::of(&e.source, language)).collect();
        let (mut found, mut left) = (BTreeSet::new(), None);
        let both = (0..seeds).flat_map(|seed| [seed, ADVERSARIAL + seed]);
        for run in job.run(&Program::new(&texts, Mode::Checked), both) {
            let all = run.read.concat();
            if run.findings.is_empty() && left.get_or_insert_with(|| all.clone()) != &all {
                found.insert("other results under another seed".into());
            }
            found.extend(run.findings);
        }
        match left {
            Some(left) if found.is_empty() => Left::Same(left),
            Some(_) | None => Left::Wrong(found),
        }
    }

    /// Panics unless neither finds anything and both leave the same.
    #[track_caller]
    pub fn agrees(&self, seeds: u64) {
        for language in Language::ALL {
            let name = format!("{}, {language:?}", self.name);
            match (self.simulated(language, seeds), self.executed(language, seeds)) {
                (Left::Same(a), Left::Same(b)) => {
                    let first = a.iter().zip(&b).position(|(a, b)| a != b);
                    assert_eq!(first, None, "{name}: the first byte of the outputs that differs");
                }
                (Left::Wrong(found), _) => panic!("{name}: the simulator finds {found:#?}"),
                (Left::Same(_), Left::Wrong(found)) => {
                    panic!("{name}: the emitted text is wrong: {found:#?}")
                }
            }
        }
    }
}
