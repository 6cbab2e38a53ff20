//! What a launch is given by its caller, and what of that is checked.

use peerwarp_codegen::dsl::{Binding, Rows};
use peerwarp_codegen::ir::Dtype;

use super::plan::{BufferSpec, ScalarSpec};
use super::tensor::{Held, Readable, TensorInfo, Writable};
use super::{RankOp, StreamRef};
use crate::runtime::RuntimeError;
use crate::runtime::gpu::DevicePtr;

/// What the caller of a kernel passes to it: the struct that `#[derive(KernelArgs)]` makes of the inputs, outputs and scalars
/// among a kernel's parameters.
///
/// # Safety
/// [`LaunchArgs::pass`] returns every hold that it gets.
pub unsafe trait LaunchArgs {
    /// The parameters that it is made from.
    type Args;
    /// A hold on each tensor.
    type Held<'h>
    where
        Self: 'h;
    /// Passes all of them.
    ///
    /// # Errors
    /// One of them does not fit the kernel.
    fn pass<'h>(&'h mut self, call: &mut Call<'_, 'h>) -> Result<Self::Held<'h>, RuntimeError>;
}

/// A number that is passed by value.
pub trait Scalar: bytemuck::NoUninit {
    /// Its type in kernels.
    const DTYPE: Dtype;
}

macro_rules! scalars {
    ($($ty:ty => $dtype:ident),+ $(,)?) => {$(
        impl Scalar for $ty {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )+};
}
scalars! { i32 => I32, u32 => U32, u64 => U64, f32 => F32 }

/// What was passed for an operand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    /// Whether anything was.
    pub there: bool,
    /// Null also for a tensor of no rows.
    pub ptr: DevicePtr,
    /// As many as the kernel uses; of rows whose number is not known yet, as many as there are.
    pub bytes: u64,
}

/// A launch that is being put together.
#[derive(Debug)]
pub struct Call<'r, 'h> {
    rank: &'r mut RankOp,
    stream: StreamRef<'h>,
}

impl<'r, 'h> Call<'r, 'h> {
    pub(super) fn new(rank: &'r mut RankOp, stream: StreamRef<'h>) -> Call<'r, 'h> {
        rank.passed.fill(Passed::default());
        Call { rank, stream }
    }

    /// Passes a tensor that the kernel reads.
    ///
    /// # Errors
    /// The variant has no such parameter or writes it, or the tensor does not fit it: see [`Call::output`].
    pub fn input(&mut self, name: &str, tensor: &'h (dyn Readable + '_)) -> Result<Held<'h>, RuntimeError> {
        self.read(name, tensor, tensor.info())
    }

    /// [`Call::input`] without a look at the element type: of words that the kernel moves as they are.
    ///
    /// # Errors
    /// As there.
    pub fn input_words(
        &mut self,
        name: &str,
        tensor: &'h (dyn Readable + '_),
    ) -> Result<Held<'h>, RuntimeError> {
        self.read(name, tensor, TensorInfo { dtypes: &[], ..tensor.info() })
    }

    fn read(
        &mut self,
        name: &str,
        tensor: &'h (dyn Readable + '_),
        info: TensorInfo,
    ) -> Result<Held<'h>, RuntimeError> {
        let at = self.find(name)?;
        if self.rank.operands[at].binding != Binding::Input {
            return Err(RuntimeError::invalid(name, "an input", "an output, as the kernel writes it"));
        }
        fits(&self.rank.operands[at], &info, &self.stream)?;
        let (ptr, held) = tensor.read(&self.stream)?;
        self.put(at, ptr, info.bytes)?;
        Ok(held)
    }

    /// Passes a tensor that the kernel reads, if the variant has such a parameter.
    ///
    /// # Errors
    /// The variant has it and there is none, or the other way round; and as [`Call::input`].
    pub fn optional_input(
        &mut self,
        name: &str,
        tensor: Option<&'h (dyn Readable + '_)>,
    ) -> Result<Held<'h>, RuntimeError> {
        match tensor {
            Some(tensor) => self.input(name, tensor),
            None => self.without(name),
        }
    }

    /// Passes a tensor that the kernel writes.
    ///
    /// # Errors
    /// The variant has no such parameter; or the tensor is too short, of another element type, on another GPU than the stream, or
    /// at an address that is not a multiple of 16.
    pub fn output(
        &mut self,
        name: &str,
        tensor: &'h mut (dyn Writable + '_),
    ) -> Result<Held<'h>, RuntimeError> {
        let at = self.find(name)?;
        let info = tensor.info();
        fits(&self.rank.operands[at], &info, &self.stream)?;
        let (ptr, held) = tensor.write(&self.stream)?;
        self.put(at, ptr, info.bytes)?;
        Ok(held)
    }

    /// Passes a tensor that the kernel writes, if the variant has such a parameter.
    ///
    /// # Errors
    /// The variant has it and there is none, or the other way round; and as [`Call::output`].
    pub fn optional_output(
        &mut self,
        name: &str,
        tensor: Option<&'h mut (dyn Writable + '_)>,
    ) -> Result<Held<'h>, RuntimeError> {
        match tensor {
            Some(tensor) => self.output(name, tensor),
            None => self.without(name),
        }
    }

    /// Passes a number.
    ///
    /// # Errors
    /// The variant has no such parameter, or has it of another type.
    pub fn scalar<T: Scalar>(&mut self, name: &str, value: T) -> Result<(), RuntimeError> {
        self.rank.set_scalar(name, value)
    }

    /// Passes a number, if the variant has such a parameter.
    ///
    /// # Errors
    /// The variant has it and there is none, or the other way round; and as [`Call::scalar`].
    pub fn optional_scalar<T: Scalar>(&mut self, name: &str, value: Option<T>) -> Result<(), RuntimeError> {
        match value {
            Some(value) => self.scalar(name, value),
            None if self.rank.has_scalar(name) => {
                Err(RuntimeError::invalid(name, "None", format!("a number, as the variant has {name}")))
            }
            None => Ok(()),
        }
    }

    fn find(&self, name: &str) -> Result<usize, RuntimeError> {
        self.rank.operand(name).ok_or_else(|| {
            RuntimeError::invalid(name, "a tensor", format!("None, as the variant has no {name}"))
        })
    }

    fn without(&self, name: &str) -> Result<Held<'h>, RuntimeError> {
        match self.rank.operand(name) {
            None => Ok(Held::default()),
            Some(at) => {
                let spec = &self.rank.operands[at];
                let allowed =
                    format!("{} elements of {:?}, which the variant uses", spec.param.len, spec.param.dtype);
                Err(RuntimeError::invalid(name, "None", allowed))
            }
        }
    }

    fn put(&mut self, at: usize, ptr: DevicePtr, given: u64) -> Result<(), RuntimeError> {
        self.rank.passed[at] = passed(&self.rank.operands[at], ptr, given)?;
        Ok(())
    }
}

/// `given` bytes from `ptr` on as an operand.
pub(super) fn passed(spec: &BufferSpec, ptr: DevicePtr, given: u64) -> Result<Passed, RuntimeError> {
    let (bytes, by_rows) = (spec.param.bytes(), spec.param.rows.is_some());
    let align = alignment(bytes);
    if (ptr == 0 && !(by_rows && given == 0)) || !ptr.is_multiple_of(align) {
        let field = format!("address of {}", spec.name);
        return Err(RuntimeError::invalid(field, format!("{ptr:#x}"), format!("one that {align} divides")));
    }
    enough(spec, given)?;
    Ok(Passed { there: true, ptr, bytes: if by_rows { given } else { bytes } })
}

/// Whether a tensor has the bytes of an operand. Of one with rows that is known when their number is.
fn enough(spec: &BufferSpec, given: u64) -> Result<(), RuntimeError> {
    let param = &spec.param;
    if param.rows.is_some() || given >= param.bytes() {
        return Ok(());
    }
    let allowed = format!("{} or more: {} elements of {:?}", param.bytes(), param.len, param.dtype);
    Err(RuntimeError::invalid(format!("bytes of {}", spec.name), given, allowed))
}

/// Kernels load and store up to 16 bytes at once.
fn alignment(bytes: u64) -> u64 {
    1 << bytes.max(1).ilog2().min(4)
}

/// Whether a tensor can be an operand, as far as that is known before its address is.
fn fits(spec: &BufferSpec, tensor: &TensorInfo, stream: &StreamRef<'_>) -> Result<(), RuntimeError> {
    let (param, name) = (&spec.param, &spec.name);
    if tensor.device != stream.device() {
        let allowed = format!("{}, that of the stream", stream.device());
        return Err(RuntimeError::invalid(format!("GPU of {name}"), tensor.device, allowed));
    }
    enough(spec, tensor.bytes)?;
    if !tensor.dtypes.is_empty() && !tensor.dtypes.contains(&param.dtype) {
        let given = tensor.dtypes.iter().map(|d| format!("{d:?}")).collect::<Vec<_>>().join(" or ");
        return Err(RuntimeError::invalid(
            format!("elements of {name}"),
            given,
            format!("{:?}", param.dtype),
        ));
    }
    Ok(())
}

/// How many bytes of `given` an operand takes, with so many rows: all of them where no number says how many there are.
///
/// # Errors
/// There are fewer, or more rows than can be.
pub(crate) fn enough_rows(spec: &BufferSpec, rows: Option<u64>, given: u64) -> Result<u64, RuntimeError> {
    let (param, name) = (&spec.param, &spec.name);
    let Some(Rows { most, scalar }) = &param.rows else {
        return enough(spec, given).map(|()| param.bytes());
    };
    let there = rows.unwrap_or(*most);
    if there > *most {
        return Err(RuntimeError::invalid(scalar, there, format!("at most {most}")));
    }
    let needed = param.bytes_of_rows(there);
    if given >= needed {
        return Ok(needed);
    }
    let (each, dtype) = (param.len / most, param.dtype);
    let allowed = format!("{needed} or more: {scalar} = {there} rows of {each} elements of {dtype:?}");
    Err(RuntimeError::invalid(format!("bytes of {name}"), given, allowed))
}

/// Memory that a caller passes.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// The parameter's name.
    pub name: &'a str,
    /// Whether the kernel writes it.
    pub is_output: bool,
    /// First byte.
    pub ptr: u64,
    /// Size.
    pub bytes: u64,
}

/// Checks that outputs share memory with nothing else that is passed.
///
/// # Errors
/// One does.
pub fn apart<'a>(given: impl Iterator<Item = Extent<'a>> + Clone) -> Result<(), RuntimeError> {
    let given = given.filter(|extent| extent.bytes > 0).enumerate();
    for (i, a) in given.clone().filter(|(_, extent)| extent.is_output) {
        for (_, b) in given.clone().filter(|(j, _)| *j != i) {
            if a.ptr < b.ptr.saturating_add(b.bytes) && b.ptr < a.ptr.saturating_add(a.bytes) {
                let (field, value) = (format!("memory of {}", a.name), format!("{:#x}", a.ptr));
                let allowed =
                    format!("memory that is not also {}'s, {} bytes at {:#x}", b.name, b.bytes, b.ptr);
                return Err(RuntimeError::invalid(field, value, allowed));
            }
        }
    }
    Ok(())
}

/// [`apart`] of what was passed for operands.
pub(super) fn operands_apart(operands: &[BufferSpec], passed: &[Passed]) -> Result<(), RuntimeError> {
    apart(operands.iter().zip(passed).map(|(spec, passed)| Extent {
        name: &spec.name,
        is_output: spec.binding.writes(),
        ptr: passed.ptr,
        bytes: passed.bytes,
    }))
}

/// The error for a scalar that the variant has not, or of another type.
pub(super) fn no_such_scalar(name: &str, given: Dtype, known: &[ScalarSpec]) -> RuntimeError {
    let known: Vec<String> = known.iter().map(|s| format!("{} ({:?})", s.name, s.dtype)).collect();
    RuntimeError::invalid("scalar", format!("{name} ({given:?})"), format!("one of {}", known.join(", ")))
}
