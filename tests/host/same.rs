//! One kernel in the simulator and as emitted text: the same results, and findings in both or in neither.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use peerwarp_codegen::ir::{Kernel, signature_and_order, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options, Strategy};

use super::build::{Language, Mode, Program, Text};
use super::job::{Emitted, Job, Run, STATUS, WAIT_BUDGET_NS};

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

    /// The kernels as emitted text.
    pub fn emitted(&self, language: Language) -> Vec<Emitted> {
        let info = EmitInfo { command: "a test".into() };
        let emitted = |kernel: Kernel| {
            let verified = verify(kernel.clone()).unwrap_or_else(|e| panic!("{}: {e}", self.name));
            let source = emit(&verified, language.target(), &info);
            Emitted { kernel, source: source.unwrap_or_else(|e| panic!("{}: {e}", self.name)) }
        };
        (self.kernels)(language).into_iter().map(emitted).collect()
    }

    /// What the emitted text leaves, with every access checked.
    pub fn executed(&self, language: Language, seeds: u64) -> Left {
        let emitted = self.emitted(language);
        let texts: Vec<Text> = emitted.iter().map(|e| Text::of(&e.source, language)).collect();
        self.executed_by(&Program::new(&texts, Mode::Checked), &emitted, language, seeds)
    }

    /// The same of a program that has the kernels, and perhaps others.
    pub fn executed_by(
        &self,
        program: &Program,
        emitted: &[Emitted],
        language: Language,
        seeds: u64,
    ) -> Left {
        let mut found = differing_orders(emitted);
        if !found.is_empty() {
            return Left::Wrong(found);
        }
        let kernels: Vec<Kernel> = emitted.iter().map(|e| e.kernel.clone()).collect();
        let sizes = self.sizes(&kernels);
        let mut job = Job::new(language, self.ranks());
        kernels.iter().for_each(|k| job.buffers_of(k, str::to_owned));
        let launch = |e| job.launch(e, str::to_owned, |n| panic!("no scalar {n}"), WAIT_BUDGET_NS);
        let launches: Vec<usize> = emitted.iter().map(launch).collect();
        for (rank, name, content) in &self.inputs {
            job.write(*rank, name, 0, content);
        }
        for rank in 0..self.ranks() {
            let all = (0..self.rounds).flat_map(|_| &launches);
            all.for_each(|&launch| job.run_on(rank, launch));
            job.read(rank, STATUS, 0..4);
            let outputs = self.outputs.iter().zip(&sizes);
            outputs.for_each(|(name, &bytes)| job.read(rank, name, 0..bytes));
        }
        let mut left = None;
        let both = (0..seeds).flat_map(|seed| [seed, ADVERSARIAL + seed]);
        for Run { findings, read, .. } in job.run(program, both) {
            let aborted = read.iter().any(|rank| rank.get(..4).is_some_and(|word| word != [0; 4]));
            let all: Vec<u8> =
                read.iter().flat_map(|rank| rank.get(4..).unwrap_or_default()).copied().collect();
            if aborted {
                found.insert("a wait expired".into());
            } else if findings.is_empty() && left.get_or_insert_with(|| all.clone()) != &all {
                found.insert("other results under another seed".into());
            }
            found.extend(findings);
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
            let (simulated, executed) = (self.simulated(language, seeds), self.executed(language, seeds));
            if let Some(difference) = difference(&simulated, &executed) {
                panic!("{}, {language:?}: {difference}", self.name);
            }
        }
    }
}

/// What the simulator or the emitted text finds wrong, or how their results differ.
pub fn difference(simulated: &Left, executed: &Left) -> Option<String> {
    match (simulated, executed) {
        (Left::Same(a), Left::Same(b)) => {
            let first = a.iter().zip(b).position(|(a, b)| a != b);
            first.map(|first| format!("byte {first} of the outputs is the first that differs"))
        }
        (Left::Wrong(found), _) => Some(format!("the simulator finds {found:?}")),
        (Left::Same(_), Left::Wrong(found)) => Some(format!("the emitted text is wrong: {found:?}")),
    }
}

/// The buffers that kernels keep in different orders, which an operation refuses.
fn differing_orders(emitted: &[Emitted]) -> BTreeSet<String> {
    let mut orders: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    let mut differing = BTreeSet::new();
    for kernel in emitted {
        for (param, words) in kernel.kernel.params.iter().zip(&kernel.source.params) {
            let order = signature_and_order(words).1;
            if *orders.entry(&param.name).or_insert(order) != order {
                differing.insert(format!("the elements of {} lie in different orders", param.name));
            }
        }
    }
    differing
}
