//! Tensors of a library that has DLPack's table of functions for C (`__dlpack_c_exchange_api__`, DLPack 1.2 and newer): what a tensor
//! is, and which stream is the current one, for what two calls of C take. A tensor without such a table is asked attribute by attribute, in Python.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyType};

/// The major version of DLPack whose layouts are those below.
const MAJOR: u32 = 1;
/// Devices that GPUs are: `kDLCUDA` and `kDLROCM`.
const GPUS: [i32; 2] = [2, 10];

/// The type of a tensor's elements, as DLPack says it: what they are, their bits, and how many are one element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl Element {
    pub const I32: Element = Element::new(0, 32);
    pub const F16: Element = Element::new(2, 16);
    pub const F32: Element = Element::new(2, 32);
    pub const BF16: Element = Element::new(4, 16);
    pub const U32: Element = Element::new(1, 32);
    pub const I64: Element = Element::new(0, 64);
    pub const U64: Element = Element::new(1, 64);
    pub const U8: Element = Element::new(1, 8);
    pub const FP8: Element = Element::new(10, 8);
    /// Whose byte of all ones is a NaN, and a NaN without its sign: e4m3fn, e5m2, or their bits as bytes without a sign.
    const PACKED_FLOATS: [Element; 3] = [Element::FP8, Element::new(12, 8), Element::new(1, 8)];

    const fn new(code: u8, bits: u8) -> Element {
        Element { code, bits, lanes: 1 }
    }

    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        u64::from(self.bits) / 8
    }
}

/// `DLTensor`.
#[repr(C)]
struct Described {
    data: *mut c_void,
    device: i32,
    number: i32,
    axes: i32,
    element: Element,
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

type Describe = unsafe extern "C" fn(*mut PyObject, *mut Described) -> c_int;
type CurrentStream = unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int;

/// `DLPackExchangeAPI`, as far as it is used here.
#[repr(C)]
struct Table {
    major: u32,
    minor: u32,
    older: *const Table,
    allocator: *const c_void,
    to_managed: *const c_void,
    from_managed: *const c_void,
    describe: Option<Describe>,
    current_stream: Option<CurrentStream>,
}

/// How tensors of one type on one GPU are looked at.
#[pyclass(frozen)]
pub struct Exchange {
    kind: Py<PyType>,
    number: i32,
    describe: Describe,
    current_stream: CurrentStream,
}

/// The most axes of a tensor that is looked at here.
const AXES: usize = 8;

/// A tensor on the GPU, whose elements are one after another.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub address: u64,
    pub element: Element,
    device: i32,
    axes: usize,
    lengths: [u64; AXES],
}

impl Seen {
    /// Its shape.
    pub fn shape(&self) -> &[u64] {
        &self.lengths[..self.axes]
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape().iter().product()
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.element.bytes()
    }

    /// Whether it is of such elements, of this shape, and begins where kernels can load 16 bytes at once.
    pub fn is(&self, element: Element, shape: [u64; 2]) -> bool {
        self.element == element && *self.shape() == shape && self.is_aligned()
    }

    /// The same of elements of a byte, whatever they are.
    pub fn is_bytes(&self, shape: [u64; 2]) -> bool {
        let Element { bits, lanes, .. } = self.element;
        u32::from(bits) * u32::from(lanes) == 8 && *self.shape() == shape && self.is_aligned()
    }

    /// The same of floats of a byte that may travel as packets, see [`Element::PACKED_FLOATS`].
    pub fn is_packed_floats(&self, shape: [u64; 2]) -> bool {
        self.is_bytes(shape) && Element::PACKED_FLOATS.contains(&self.element)
    }

    /// Whether kernels can load 16 bytes at its address; one without elements has none.
    pub fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16) && (self.address != 0 || self.elements() == 0)
    }

    /// Whether two tensors share memory.
    pub fn overlaps(&self, other: &Seen) -> bool {
        let end = |of: &Seen| of.address.saturating_add(of.bytes());
        self.address < end(other) && other.address < end(self)
    }
}

#[pymethods]
impl Exchange {
    /// Of a type of tensors and the number of a GPU; a `TypeError` if the type has no table that can be used.
    #[new]
    fn new(kind: &Bound<'_, PyType>, number: i32) -> PyResult<Exchange> {
        let capsule = kind.getattr("__dlpack_c_exchange_api__")?;
        let table = capsule.cast::<PyCapsule>()?.pointer_checked(Some(c"dlpack_exchange_api"))?;
        // SAFETY: a capsule of this name points to such a table, which lives as long as the process. Its first fields are those of all
        // versions, and nothing else is read of other ones than ours.
        let found = unsafe {
            let table = table.cast::<Table>().as_ptr();
            ((*table).major == MAJOR).then(|| ((*table).describe, (*table).current_stream))
        };
        match found {
            Some((Some(describe), Some(current_stream))) => {
                Ok(Exchange { kind: kind.clone().unbind(), number, describe, current_stream })
            }
            _ => Err(PyTypeError::new_err(format!(
                "{kind} has no table of DLPack {MAJOR} that describes tensors"
            ))),
        }
    }

    /// For tests: address, elements' code and bits, and shape of a tensor on the GPU; none of anything else.
    fn look(&self, tensor: &Bound<'_, PyAny>) -> Option<(u64, (u8, u8), Vec<u64>)> {
        let seen = self.seen(tensor)?;
        Some((seen.address, (seen.element.code, seen.element.bits), seen.shape().to_vec()))
    }
}

impl Exchange {
    /// What a tensor is; none if it is of another type or GPU, has gaps, or cannot be looked at: then Python looks, and says why not.
    #[inline]
    pub fn seen(&self, tensor: &Bound<'_, PyAny>) -> Option<Seen> {
        if tensor.get_type_ptr().cast() != self.kind.as_ptr() {
            return None;
        }
        let mut found = std::mem::MaybeUninit::<Described>::uninit();
        // SAFETY: the function is of this type's table. It fills the struct, unless it says that it did not.
        let found = unsafe {
            if (self.describe)(tensor.as_ptr(), found.as_mut_ptr()) != 0 {
                drop(PyErr::take(tensor.py()));
                return None;
            }
            found.assume_init()
        };
        let axes = usize::try_from(found.axes).ok().filter(|axes| *axes <= AXES)?;
        if !GPUS.contains(&found.device) || found.number != self.number {
            return None;
        }
        let mut lengths = [0; AXES];
        let mut step = 1;
        for axis in (0..axes).rev() {
            // SAFETY: as many lengths as there are axes, and as many strides unless there are none.
            let (length, stride) = unsafe {
                let stride = (!found.strides.is_null()).then(|| *found.strides.add(axis));
                (*found.shape.add(axis), stride)
            };
            if length > 1 && stride.is_some_and(|stride| stride != step) {
                return None;
            }
            lengths[axis] = u64::try_from(length).ok()?;
            step *= length;
        }
        let address = found.data as u64 + found.offset;
        Some(Seen { address, element: found.element, device: found.device, axes, lengths })
    }

    /// The current stream of a tensor's GPU; none if the library does not say.
    #[inline]
    pub fn stream(&self, py: Python<'_>, of: &Seen) -> Option<u64> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the function is of the table, and fills the pointer.
        let failed = unsafe { (self.current_stream)(of.device, self.number, &mut stream) };
        if failed != 0 {
            drop(PyErr::take(py));
            return None;
        }
        Some(stream as u64)
    }
}
