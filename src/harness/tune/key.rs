//! What pairs are tuned for.

use std::fmt;

use peerwarp_codegen::family::Choice as _;
use serde::{Deserialize, Serialize};

use crate::families::moe::kernels::{Dispatch, Hook, Layout};
use crate::families::moe::run::MoeTuning;
use crate::families::moe::{MoeError, MoeShape};

/// A shape, and how rows stand between dispatch and combine: a pair that was tuned for one layout is not for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The shape.
    pub shape: MoeShape,
    /// How rows stand.
    pub layout: Layout,
}

impl Key {
    /// A shape with rows by expert, as they stand unless somebody asks for something else.
    pub fn by_expert(shape: MoeShape) -> Key {
        Key { shape, layout: Layout::Experts }
    }

    /// A shape with rows by token.
    pub fn by_token(shape: MoeShape) -> Key {
        Key { shape, layout: Layout::Tokens }
    }

    /// What a dispatch is for.
    pub fn of(dispatch: &Dispatch) -> Key {
        Key { shape: dispatch.shape(), layout: dispatch.layout }
    }

    /// The same with another number of tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: u32) -> Key {
        Key { shape: MoeShape { tokens, ..self.shape }, ..self }
    }

    /// The pair that is taken where nothing was tuned.
    pub fn defaults(&self) -> Result<MoeTuning, MoeError> {
        MoeTuning::defaults_with(&self.shape, Hook::None, self.layout)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, layout {}", self.shape, self.layout.name())
    }
}
