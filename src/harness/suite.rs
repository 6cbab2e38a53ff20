//! Suites of one family: one that has a [`Workload`], and one of which nothing is known but its parameters.

use std::sync::Arc;

use std::fmt;
use std::marker::PhantomData;

use peerwarp_codegen::dsl::ParamSpec;
use peerwarp_codegen::family::{Family, FamilyEntry, Variant};
use peerwarp_codegen::ir::{Const, Dtype, ParamKind};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::verdict::Expected;
use super::workload::{
    Baseline, Contents, Inputs, Metric, OfRows, On, OptionSpec, Problem, Suite, Turn, Work, Workload,
    WorkloadError, key_in_words,
};
use crate::input::InputError;
use crate::runtime::op::LaunchSpec;

/// Bytes of random values; longer buffers repeat them.
const PATTERN: usize = 1 << 20;

/// The length of launches that say it.
const LAUNCH_ROWS: OptionSpec = OptionSpec {
    name: "launch-rows",
    value: Some("ROWS"),
    help: "Rows of each launch, where launches say how many [default: all where times are taken, else drawn]",
    on: On::Inputs,
    list: false,
};

/// The suite of a family that has a workload.
pub fn of<F: Workload>() -> &'static dyn Suite {
    &const { Described::<F>(PhantomData) }
}

/// The suite of a family that has none: inputs are random, and nothing is compared.
pub fn plain<F: Family>() -> &'static dyn Suite {
    &const { Plain::<F>(PhantomData) }
}

struct Described<F>(PhantomData<fn() -> F>);

struct Plain<F>(PhantomData<fn() -> F>);

impl<F: Family> fmt::Debug for Described<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "suite of {}", F::NAME)
    }
}

impl<F: Family> fmt::Debug for Plain<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "suite of {}, without a workload", F::NAME)
    }
}

impl<F: Workload> Suite for Described<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn families(&self) -> Vec<FamilyEntry> {
        vec![F::entry()]
    }

    fn problem(&self, variants: &[Variant], inputs: &Inputs) -> Result<Box<dyn Problem>, WorkloadError> {
        let (config, launches) = one::<F>(variants)?;
        let (seed, rounds) = (inputs.seed, inputs.rounds);
        let rows = inputs.given.get(LAUNCH_ROWS.name).map(|text| {
            let rows = text.parse().map_err(|_| {
                InputError::not_allowed("--launch-rows", text, "a whole number of rows, up to the capacity")
            });
            rows.and_then(|rows| config.of_rows(rows))
        });
        let of_rows = rows.transpose()?;
        Ok(Box::new(DescribedProblem { config, of_rows, launches: [launches], seed, rounds, inactive: 0 }))
    }

    fn options(&self) -> Vec<OptionSpec> {
        if F::takes_rows() { vec![LAUNCH_ROWS] } else { vec![] }
    }

    fn baselines(&self) -> Option<Baseline> {
        F::baselines()
    }
}

impl<F: Family> Suite for Plain<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn families(&self) -> Vec<FamilyEntry> {
        vec![F::entry()]
    }

    fn problem(&self, variants: &[Variant], inputs: &Inputs) -> Result<Box<dyn Problem>, WorkloadError> {
        let (_, launch) = one::<F>(variants)?;
        let (seed, rounds) = (inputs.seed, inputs.rounds);
        Ok(Box::new(PlainProblem { launches: [launch], seed, rounds }))
    }
}

/// The only variant of a family, and its launch.
fn one<F: Family>(variants: &[Variant]) -> Result<(F, LaunchSpec), WorkloadError> {
    let own = variants.iter().filter_map(|v| Some((v, v.as_any().downcast_ref::<F>()?)));
    match own.collect::<Vec<_>>()[..] {
        [(variant, config)] => {
            config.check()?;
            Ok((config.clone(), LaunchSpec::new(F::NAME, variant.clone())))
        }
        [(a, _), (b, _), ..] => {
            let (a, b) = (a.variant_name(), b.variant_name());
            Err(InputError::conflict("VARIANT", b, a, "one variant of a family at a time").into())
        }
        [] => Err(InputError::missing("variant", format!("one of {}", F::NAME)).into()),
    }
}

#[derive(Clone, Debug)]
struct DescribedProblem<F> {
    config: F,
    /// What all launches are like, where their length is given.
    of_rows: Option<OfRows<F>>,
    launches: [LaunchSpec; 1],
    seed: u64,
    rounds: u32,
    /// Ranks without which the world goes on, as a mask.
    inactive: u64,
}

impl<F: Workload> DescribedProblem<F> {
    /// What inputs and results are those of.
    fn like(&self) -> &F {
        self.of_rows.as_ref().map_or(&self.config, |of| &of.like)
    }

    /// What launches are passed.
    fn passed(&self, inputs: impl Fn(&F) -> Vec<Contents>) -> Vec<Contents> {
        let words = self.of_rows.iter().flat_map(|of| of.words.iter().cloned());
        inputs(self.like()).into_iter().chain(words).collect()
    }
}

impl<F: Workload> Problem for DescribedProblem<F> {
    fn ranks(&self) -> u32 {
        self.config.ranks()
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn launches(&self) -> &[LaunchSpec] {
        &self.launches
    }

    fn inputs(&self, rank: u32, round: u32) -> Vec<Contents> {
        self.passed(|f| f.inputs(Turn { seed: self.seed, rank, round }))
    }

    fn numbers(&self, rank: u32, round: u32) -> Vec<(String, Const)> {
        let turn = Turn { seed: self.seed, rank, round };
        self.of_rows.as_ref().map_or_else(|| self.config.numbers(turn), |of| of.numbers.clone())
    }

    fn expected(&self, rank: u32, round: u32) -> Vec<Expected> {
        let turn = Turn { seed: self.seed, rank, round };
        match self.inactive {
            0 => self.like().expected(turn),
            inactive if inactive >> rank & 1 != 0 => vec![],
            inactive => self.like().expected_without(turn, inactive).unwrap_or_default(),
        }
    }

    fn without(&self, inactive: u64) -> Option<Arc<dyn Problem>> {
        let turn = Turn { seed: self.seed, rank: inactive.trailing_ones(), round: 0 };
        self.like().expected_without(turn, inactive)?;
        Some(Arc::new(DescribedProblem { inactive, ..self.clone() }))
    }

    fn timing_inputs(&self, rank: u32) -> Vec<Contents> {
        self.passed(|f| f.timing_inputs(Turn { seed: self.seed, rank, round: 0 }))
    }

    fn timing_numbers(&self, rank: u32) -> Vec<(String, Const)> {
        let turn = Turn { seed: self.seed, rank, round: 0 };
        self.of_rows.as_ref().map_or_else(|| self.config.timing_numbers(turn), |of| of.numbers.clone())
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![Metric { name: F::NAME.to_owned(), launches: 0..1, work: self.like().work() }]
    }

    fn baseline_case(&self) -> serde_json::Value {
        self.like().baseline_case()
    }

    fn title(&self) -> String {
        format!("{}: {}", F::NAME, key_in_words(&*self.launches[0].variant))
    }
}

#[derive(Debug)]
struct PlainProblem {
    launches: [LaunchSpec; 1],
    seed: u64,
    rounds: u32,
}

impl Problem for PlainProblem {
    fn ranks(&self) -> u32 {
        self.launches[0].variant.ranks()
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn launches(&self) -> &[LaunchSpec] {
        &self.launches
    }

    fn inputs(&self, rank: u32, round: u32) -> Vec<Contents> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(u64::from(round) << 32 | u64::from(rank));
        let params = self.launches[0].variant.params();
        let given = params.iter().filter(|p| p.binding.reads() && p.kind != ParamKind::Scalar);
        given.map(|p| random(p, &mut rng)).collect()
    }

    fn expected(&self, _rank: u32, _round: u32) -> Vec<Expected> {
        vec![]
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![Metric { name: self.launches[0].label.clone(), launches: 0..1, work: Work::default() }]
    }

    fn title(&self) -> String {
        let launch = &self.launches[0];
        format!("{}: {}", launch.label, key_in_words(&*launch.variant))
    }

    fn facts(&self) -> Vec<(String, serde_json::Value)> {
        vec![("inputs".into(), "random; the family has no workload, so that nothing is compared".into())]
    }
}

/// Random contents of a parameter.
fn random(param: &ParamSpec, rng: &mut ChaCha8Rng) -> Contents {
    let bytes = random_bytes(param.dtype, PATTERN.min(param.bytes() as usize), rng);
    Contents::repeated(&param.name, bytes)
}

/// Random values as bytes: floats from 0.5 to 1 and from -1 to -0.5, so that they are finite, of one size, and links move
/// something else than zeros; integers 0 and 1, as they may be counts or indices.
pub fn random_bytes(dtype: Dtype, bytes: usize, rng: &mut ChaCha8Rng) -> Vec<u8> {
    // The bits of an element, from the lowest byte on: which are drawn, sign and mantissa, and which are set besides.
    let (drawn, set): (&[u8], &[u8]) = match dtype {
        Dtype::Bf16 => (&[0x7f, 0x80], &[0x00, 0x3f]),
        Dtype::Fp16 => (&[0xff, 0x83], &[0x00, 0x38]),
        Dtype::Fp8 => (&[0x87], &[0x30]),
        Dtype::F32 => (&[0xff, 0xff, 0x7f, 0x80], &[0x00, 0x00, 0x00, 0x3f]),
        Dtype::I32 | Dtype::U32 => (&[1, 0, 0, 0], &[0; 4]),
        Dtype::U64 => (&[1, 0, 0, 0, 0, 0, 0, 0], &[0; 8]),
        Dtype::Bool => (&[1], &[0]),
    };
    let mut all = vec![0; bytes];
    rng.fill_bytes(&mut all);
    for (i, byte) in all.iter_mut().enumerate() {
        *byte = *byte & drawn[i % drawn.len()] | set[i % set.len()];
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::elements::decode;

    #[test]
    fn random_floats_are_of_one_size_and_have_both_signs() {
        for dtype in [Dtype::Bf16, Dtype::Fp16, Dtype::Fp8, Dtype::F32] {
            let values = decode(dtype, &random_bytes(dtype, 4096, &mut ChaCha8Rng::seed_from_u64(1)));
            assert!(values.iter().all(|v| (0.5..1.0).contains(&v.abs())), "{dtype}");
            assert!(values.iter().any(|v| *v > 0.0) && values.iter().any(|v| *v < 0.0), "{dtype}");
        }
    }

    #[test]
    fn random_integers_are_zero_or_one() {
        let bytes = random_bytes(Dtype::U32, 4096, &mut ChaCha8Rng::seed_from_u64(1));
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert!(words.iter().all(|w| *w < 2) && words.contains(&0) && words.contains(&1));
    }
}
