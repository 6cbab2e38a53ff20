//! What a kernel is emitted for: a backend and one of its architectures.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::suggest::nearest;

macro_rules! arch {
    ($(#[$m:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // each variant is the architecture it is named after
        pub enum $name {
            $($variant),+
        }

        impl $name {
            /// Every supported architecture, oldest first.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The name compilers know it by.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

arch! {
    /// An NVIDIA architecture. A trailing `a` has features that no other architecture has.
    CudaArch {
        Sm80 = "sm_80", Sm86 = "sm_86", Sm87 = "sm_87", Sm89 = "sm_89", Sm90 = "sm_90", Sm90a = "sm_90a", Sm100 = "sm_100",
        Sm100a = "sm_100a", Sm103a = "sm_103a", Sm110a = "sm_110a", Sm120 = "sm_120", Sm120a = "sm_120a", Sm121a = "sm_121a",
    }
}
arch! {
    /// An AMD architecture.
    HipArch { Gfx90a = "gfx90a", Gfx942 = "gfx942", Gfx950 = "gfx950", Gfx1250 = "gfx1250" }
}

impl CudaArch {
    /// The compute capability as one number: 80 for `sm_80`, 103 for `sm_103a`.
    pub const fn capability(self) -> u32 {
        match self {
            CudaArch::Sm80 => 80,
            CudaArch::Sm86 => 86,
            CudaArch::Sm87 => 87,
            CudaArch::Sm89 => 89,
            CudaArch::Sm90 | CudaArch::Sm90a => 90,
            CudaArch::Sm100 | CudaArch::Sm100a => 100,
            CudaArch::Sm103a => 103,
            CudaArch::Sm110a => 110,
            CudaArch::Sm120 | CudaArch::Sm120a => 120,
            CudaArch::Sm121a => 121,
        }
    }
}

/// What multiplies matrices on a target, and where it reads operands and adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixUnit {
    /// A warp, from registers to registers.
    Warp,
    /// A warpgroup, from shared memory to registers: `wgmma`. Boxes of operands come by tensor maps.
    Warpgroup,
    /// One thread's instructions, from shared memory to tensor memory: `tcgen05`. Boxes come by tensor maps.
    TensorMemory,
}

impl MatrixUnit {
    /// Whether instructions read operands in shared memory by themselves, so that one warp can bring them for all others.
    pub const fn reads_shared(self) -> bool {
        !matches!(self, MatrixUnit::Warp)
    }
}

/// What a kernel is emitted for.
///
/// ```
/// use peerwarp_codegen::family::{HipArch, Target};
///
/// let target: Target = "cuda:sm_90a".parse()?;
/// assert_eq!((target.warp_size(), target.file_extension()), (32, "cu"));
/// assert_eq!(Target::Hip(HipArch::Gfx942).to_string(), "hip:gfx942");
/// assert!("cuda:sm_91".parse::<Target>().unwrap_err().to_string().contains("did you mean `cuda:sm_90`?"));
/// # Ok::<(), peerwarp_codegen::family::TargetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Target {
    /// CUDA C++ for an NVIDIA GPU.
    Cuda(CudaArch),
    /// HIP C++ for an AMD GPU.
    Hip(HipArch),
}

impl Target {
    /// Every supported target.
    pub fn all() -> impl Iterator<Item = Target> {
        let cuda = CudaArch::ALL.iter().map(|&a| Target::Cuda(a));
        cuda.chain(HipArch::ALL.iter().map(|&a| Target::Hip(a)))
    }

    /// `cuda` or `hip`.
    pub const fn backend(self) -> &'static str {
        match self {
            Target::Cuda(_) => "cuda",
            Target::Hip(_) => "hip",
        }
    }

    /// The architecture's name, as compilers know it.
    pub const fn arch(self) -> &'static str {
        match self {
            Target::Cuda(arch) => arch.name(),
            Target::Hip(arch) => arch.name(),
        }
    }

    /// Lanes a warp.
    pub const fn warp_size(self) -> u32 {
        match self {
            Target::Cuda(_) => 32,
            Target::Hip(HipArch::Gfx1250) => 32,
            Target::Hip(HipArch::Gfx90a | HipArch::Gfx942 | HipArch::Gfx950) => 64,
        }
    }

    /// Whether instructions are of AMD's twelfth generation: `wmma` of warps of 32 lanes in place of `mfma`, counters of loads and of
    /// stores by themselves, and cache commands with a scope.
    pub const fn is_gfx12(self) -> bool {
        matches!(self, Target::Hip(HipArch::Gfx1250))
    }

    /// Neighbours in a row of a result of 16 x 16 that a lane has: of `mma.sync`, of `wmma` and of `mfma`.
    pub const fn matrix_neighbours(self) -> u32 {
        match self {
            Target::Cuda(_) => 2,
            Target::Hip(_) if self.is_gfx12() => 8,
            Target::Hip(_) => 4,
        }
    }

    /// Whether a kernel can wait by itself for the launches before it (programmatic dependent launch).
    pub const fn overlaps_launches(self) -> bool {
        match self {
            Target::Cuda(arch) => arch.capability() >= 90,
            Target::Hip(_) => false,
        }
    }

    /// What multiplies matrices.
    pub const fn matrix_unit(self) -> MatrixUnit {
        match self {
            Target::Cuda(CudaArch::Sm90a) => MatrixUnit::Warpgroup,
            Target::Cuda(CudaArch::Sm100a | CudaArch::Sm103a | CudaArch::Sm110a) => MatrixUnit::TensorMemory,
            Target::Cuda(_) | Target::Hip(_) => MatrixUnit::Warp,
        }
    }

    /// Whether matrix instructions take OCP's e4m3. Those of gfx942 take another format of 8 bits, e4m3fnuz.
    pub const fn has_fp8_products(self) -> bool {
        match self {
            Target::Cuda(arch) => arch.capability() >= 89,
            Target::Hip(arch) => matches!(arch, HipArch::Gfx950 | HipArch::Gfx1250),
        }
    }

    /// Whether matrix instructions take operands with scales of blocks.
    pub const fn has_block_scales(self) -> bool {
        matches!(self.matrix_unit(), MatrixUnit::TensorMemory)
    }

    /// Whether one instruction multiplies for two neighbouring blocks, of which each brings half of the right operand.
    pub const fn has_pairs(self) -> bool {
        matches!(self.matrix_unit(), MatrixUnit::TensorMemory)
    }

    /// Whether a GPU copies from shared memory to global memory by itself.
    pub const fn copies_in_bulk(self) -> bool {
        match self {
            Target::Cuda(arch) => arch.capability() >= 90,
            Target::Hip(_) => false,
        }
    }

    /// Whether the switch between GPUs reads, writes and reduces all ranks' memory.
    pub const fn has_multimem(self) -> bool {
        match self {
            Target::Cuda(arch) => arch.capability() >= 90,
            Target::Hip(_) => false,
        }
    }

    /// Extension of emitted source files, without the dot.
    pub const fn file_extension(self) -> &'static str {
        match self {
            Target::Cuda(_) => "cu",
            Target::Hip(_) => "hip",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend(), self.arch())
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

impl TryFrom<String> for Target {
    type Error = TargetError;
    fn try_from(text: String) -> Result<Target, TargetError> {
        text.parse()
    }
}

impl FromStr for Target {
    type Err = TargetError;
    fn from_str(text: &str) -> Result<Target, TargetError> {
        let names: Vec<String> = Target::all().map(|t| t.to_string()).collect();
        if let Some(target) = Target::all().zip(&names).find_map(|(t, n)| (n == text).then_some(t)) {
            return Ok(target);
        }
        // `sm_90a` alone is the commonest slip; edit distance to `cuda:sm_90a` would not find it.
        let bare = Target::all().find(|t| t.arch() == text).map(|t| t.to_string());
        let near = bare.or_else(|| nearest(text, names.iter().map(String::as_str)).map(str::to_owned));
        Err(TargetError { given: text.to_owned(), nearest: near })
    }
}

/// A target that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("target `{given}` is not known{}; supported are {}", super::suggest::did_you_mean(.nearest), supported())]
pub struct TargetError {
    /// What was asked for.
    pub given: String,
    /// The supported target that looks most like it.
    pub nearest: Option<String>,
}

fn supported() -> String {
    let of = |all: Vec<&str>| all.join("|");
    let cuda = of(CudaArch::ALL.iter().map(|a| a.name()).collect());
    let hip = of(HipArch::ALL.iter().map(|a| a.name()).collect());
    format!("cuda:{{{cuda}}} and hip:{{{hip}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_parses_back_and_has_its_backends_facts() {
        assert_eq!(Target::all().count(), 17);
        for t in Target::all() {
            assert_eq!(t.to_string().parse(), Ok(t));
            let json = serde_json::to_string(&t).unwrap();
            assert_eq!(json, format!("\"{t}\""));
            assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), t);
            let cuda = matches!(t, Target::Cuda(_));
            let narrow = cuda || t.arch() == "gfx1250";
            assert_eq!(t.warp_size(), if narrow { 32 } else { 64 });
            assert_eq!(t.file_extension(), if cuda { "cu" } else { "hip" });
        }
        for a in CudaArch::ALL {
            let digits: String = a.name().chars().filter(char::is_ascii_digit).collect();
            assert_eq!(digits, a.capability().to_string());
        }
    }

    /// One row for each target: what multiplies, whether its instructions read shared memory, fp8 products, bulk copies and the switch.
    #[test]
    fn every_target_says_what_it_can_do() {
        let row = |t: Target| {
            let unit = t.matrix_unit();
            let can = [unit.reads_shared(), t.has_fp8_products(), t.copies_in_bulk(), t.has_multimem()];
            let can = can.map(u32::from);
            format!("{t}: {unit:?} {can:?}")
        };
        insta::assert_snapshot!(Target::all().map(row).collect::<Vec<_>>().join("\n"), @r"
        cuda:sm_80: Warp [0, 0, 0, 0]
        cuda:sm_86: Warp [0, 0, 0, 0]
        cuda:sm_87: Warp [0, 0, 0, 0]
        cuda:sm_89: Warp [0, 1, 0, 0]
        cuda:sm_90: Warp [0, 1, 1, 1]
        cuda:sm_90a: Warpgroup [1, 1, 1, 1]
        cuda:sm_100: Warp [0, 1, 1, 1]
        cuda:sm_100a: TensorMemory [1, 1, 1, 1]
        cuda:sm_103a: TensorMemory [1, 1, 1, 1]
        cuda:sm_110a: TensorMemory [1, 1, 1, 1]
        cuda:sm_120: Warp [0, 1, 1, 1]
        cuda:sm_120a: Warp [0, 1, 1, 1]
        cuda:sm_121a: Warp [0, 1, 1, 1]
        hip:gfx90a: Warp [0, 0, 0, 0]
        hip:gfx942: Warp [0, 0, 0, 0]
        hip:gfx950: Warp [0, 1, 0, 0]
        hip:gfx1250: Warp [0, 1, 0, 0]
        ");
    }

    #[test]
    fn unknown_targets_are_told_what_is_near_and_what_there_is() {
        let said = |text: &str| text.parse::<Target>().unwrap_err().to_string();
        insta::assert_snapshot!(said("cuda:sm90a"), @"target `cuda:sm90a` is not known (did you mean `cuda:sm_90a`?); supported are cuda:{sm_80|sm_86|sm_87|sm_89|sm_90|sm_90a|sm_100|sm_100a|sm_103a|sm_110a|sm_120|sm_120a|sm_121a} and hip:{gfx90a|gfx942|gfx950|gfx1250}");
        assert_eq!("gfx942".parse::<Target>().unwrap_err().nearest.unwrap(), "hip:gfx942");
        assert_eq!("metal".parse::<Target>().unwrap_err().nearest, None);
        assert!(serde_json::from_str::<Target>("\"cuda:sm_12\"").is_err());
    }
}
