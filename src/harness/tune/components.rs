//! What a suite says of how its kernels are tuned, and the candidates that follow from it.

use std::fmt;

use peerwarp_codegen::family::Variant;

/// Whether variants, one for each component, go together: an error says why not.
pub type Together = fn(&[Variant]) -> Result<(), String>;

/// Which variants of a suite's families are tuned together, each by fields of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Components {
    /// Which go together; without, all that are legal by themselves.
    pub together: Option<Together>,
}

impl Components {
    /// Whether these variants, one for each component, go together.
    ///
    /// # Errors
    /// Why they do not.
    pub fn check(&self, variants: &[Variant]) -> Result<(), String> {
        self.together.map_or(Ok(()), |together| together(variants))
    }
}

/// What kernels should take, without running them: good enough to rank candidates and to leave out hopeless ones. Every list
/// has an element for each component, in the order of the variants. Times are in microseconds.
pub trait CostModel: fmt::Debug + Send + Sync {
    /// What each component takes.
    fn times(&self, components: &[Variant]) -> Vec<f64>;
    /// What no kernel that does the same work can take less than.
    fn least(&self, components: &[Variant]) -> Vec<f64>;
    /// Whether the registers of each hold what its lanes have in flight.
    fn fits(&self, components: &[Variant]) -> Vec<bool>;
}

/// A variant for each component of a suite, in the order of its families. Two with the same names are the same.
#[derive(Clone)]
pub struct Candidate {
    variants: Vec<Variant>,
    names: Vec<String>,
}

impl Candidate {
    /// Of these variants.
    pub fn new(variants: impl Into<Vec<Variant>>) -> Candidate {
        let variants = variants.into();
        Candidate { names: variants.iter().map(|v| v.variant_name()).collect(), variants }
    }

    /// The variants.
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    /// Their names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many components it has.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The same with another variant of one component.
    #[must_use]
    pub fn with(&self, component: usize, variant: Variant) -> Candidate {
        let mut changed = self.clone();
        changed.names[component] = variant.variant_name();
        changed.variants[component] = variant;
        changed
    }

    /// The components in which two candidates of one suite differ.
    pub fn changed(&self, other: &Candidate) -> Vec<usize> {
        (0..self.len()).filter(|&at| self.names[at] != other.names[at]).collect()
    }

    /// Whether one of its variants has this name.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.names == other.names
    }
}

impl Eq for Candidate {}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.names).finish()
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(" with "))
    }
}
