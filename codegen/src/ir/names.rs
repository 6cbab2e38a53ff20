//! What to call values and variables in text: the author's names made unique, numbers for what has none.

use std::collections::HashMap;

use super::{Const, Kernel, ValueId, ValueOp, VarId};

/// Unique names of a kernel's values and variables, and which values are constants.
///
/// The first value that the author called `t` is `%t`, the second `%t.1`; value 12 without a name is `%12`. The same
/// names stand in the text form, in verifier errors and in `explain`.
#[derive(Debug)]
pub struct Names {
    values: Vec<String>,
    vars: Vec<String>,
    constants: Vec<Option<Const>>,
}

impl Names {
    /// Names everything in a kernel. Works for kernels that do not verify, too.
    pub fn of(kernel: &Kernel) -> Names {
        let mut constants = vec![None; kernel.values.len()];
        for op in &kernel.ops {
            if let super::OpKind::Value(ValueOp::Const { out, value }) = op.kind
                && let Some(slot) = constants.get_mut(out.index())
            {
                *slot = Some(value);
            }
        }
        Names {
            values: unique('%', kernel.values.iter().map(|v| v.name.as_deref())),
            vars: unique('$', kernel.vars.iter().map(|v| v.name.as_deref())),
            constants,
        }
    }

    /// The value as an operand: its literal if it is a constant, else its name.
    pub fn value(&self, id: ValueId) -> String {
        match self.constants.get(id.index()).copied().flatten() {
            Some(c) => c.to_string(),
            None => self.defined(id),
        }
    }

    /// The value's name, also for a constant.
    pub fn defined(&self, id: ValueId) -> String {
        self.values.get(id.index()).cloned().unwrap_or_else(|| format!("%?{}", id.0))
    }

    /// The variable's name.
    pub fn var(&self, id: VarId) -> String {
        self.vars.get(id.index()).cloned().unwrap_or_else(|| format!("$?{}", id.0))
    }

    /// The value's constant, if a `Const` operation defines it.
    pub fn constant(&self, id: ValueId) -> Option<Const> {
        self.constants.get(id.index()).copied().flatten()
    }
}

fn unique<'a>(sigil: char, names: impl Iterator<Item = Option<&'a str>>) -> Vec<String> {
    let mut seen: HashMap<&str, u32> = HashMap::new();
    names
        .enumerate()
        .map(|(i, name)| match name {
            None => format!("{sigil}{i}"),
            Some(n) => {
                let count = seen.entry(n).or_insert(0);
                *count += 1;
                match *count - 1 {
                    0 => format!("{sigil}{n}"),
                    again => format!("{sigil}{n}.{again}"),
                }
            }
        })
        .collect()
}
