//! Operations: one key, one plan, and the launches that are made from both.

use std::fmt::{Debug, Display};

use super::{Family, FamilyError, Variant};

/// What one or several launches do together, as planned for a problem.
///
/// An operation has one key, what the problem asks, and one plan, every choice. Each launch is a projection of both, so launches
/// that disagree cannot be written down. A [`Family`] is the operation of one launch, and its configuration is key and plan in one.
/// The families of an operation of several launches have a type for their part of the plan: `#[family(plan = Name)]`.
pub trait Operation: Clone + Debug + PartialEq {
    /// What a problem asks.
    type Key;
    /// Why there is no plan for a key.
    type Error: Display;

    /// With the default plan for a key.
    ///
    /// # Errors
    /// No plan is legal for the key.
    fn with_default_plan(key: &Self::Key) -> Result<Self, Self::Error>;

    /// The launches, in order.
    fn launches(&self) -> Vec<Variant>;

    /// The launches that stand for it where variants are chosen: one of each family.
    fn components(&self) -> Vec<Variant> {
        self.launches()
    }

    /// The operation that has these components; none if they are of other families, or disagree.
    fn of_components(variants: &[Variant]) -> Option<Self>;
}

impl<F: Family> Operation for F {
    type Key = F::Key;
    type Error = FamilyError;

    fn with_default_plan(key: &F::Key) -> Result<F, FamilyError> {
        F::with_defaults(key)
    }

    fn launches(&self) -> Vec<Variant> {
        vec![self.clone().into_variant()]
    }

    fn of_components(variants: &[Variant]) -> Option<F> {
        let [only] = variants else { return None };
        only.as_any().downcast_ref().cloned()
    }
}
