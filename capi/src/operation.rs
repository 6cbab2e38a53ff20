//! Packs, and their kernels as operations of a world.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex};

use peerwarp::build::pack::Pack;
use peerwarp::codegen::dsl::{Binding, ParamSpec};
use peerwarp::codegen::family::DynKernel;
use peerwarp::codegen::ir::{Const, Dtype, ParamKind};
use peerwarp::harness::session::SimOperation;
use peerwarp::runtime::op::{self, Extent, LaunchSpec};

use crate::error::{Failure, PeerwarpResult, guarded, text};
use crate::handles::{self, Object, lock};
use crate::world::{PeerwarpWorld, Ranks, stream};

/// Kernels that `peerwarp pack` compiled.
pub struct PeerwarpPack {
    _private: [u8; 0],
}

/// A kernel of a pack, with its own memory on each rank of a world.
pub struct PeerwarpOperation {
    _private: [u8; 0],
}

/// What is passed for a parameter of a kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeerwarpArgument {
    /// The parameter's name.
    pub name: *const c_char,
    /// A tensor's address, on the rank's GPU or of simulated ranks on the host; of a number, the host's address of it.
    pub data: *mut c_void,
    /// Bytes from there on.
    pub bytes: u64,
    /// The type of the elements or number: `f32`, `fp16`, `bf16`, `fp8`, `i32`, `u32`, `u64`. NULL: it is not compared.
    pub dtype: *const c_char,
}

struct PackFile(Pack);

impl Object for PackFile {
    const NAME: &'static str = "pack";
    const A: &'static str = "a pack";
}

/// What callers pass of a kernel's parameters.
#[derive(Clone, Debug)]
struct Parameter {
    name: String,
    dtype: Dtype,
    is_output: bool,
}

enum On {
    Gpu(Mutex<op::Operation>),
    Simulated(SimOperation),
}

struct Operation {
    /// In the order of the launch's operands.
    operands: Vec<Parameter>,
    numbers: Vec<Parameter>,
    on: On,
}

impl Object for Operation {
    const NAME: &'static str = "operation";
    const A: &'static str = "an operation";
}

/// An argument whose texts were read.
#[derive(Clone, Copy)]
struct Passed<'a> {
    name: &'a str,
    dtype: Option<&'a str>,
    data: *mut c_void,
    bytes: u64,
}

/// The arguments of a rank: operands in the order of the launch, and numbers.
struct Arranged<'a> {
    operands: Vec<Passed<'a>>,
    numbers: Vec<(String, Const)>,
}

/// Reads `page=65536, pool=64`.
fn settings(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let words = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
    let pair = |word: &str| match word.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(Failure::invalid("key", format_args!("\"{word}\""), "FIELD=VALUE, with commas between")),
    };
    words.map(pair).collect()
}

/// Bytes on the host.
///
/// # Safety
/// They are there for `'a`, unless the address is null.
unsafe fn on_host<'a>(field: &str, data: *mut c_void, bytes: u64) -> Result<&'a [u8], Failure> {
    match (bytes, data.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Failure::invalid(format_args!("data of {field}"), "null", "an address")),
        // SAFETY: as the caller says.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(data.cast(), bytes as usize) }),
    }
}

/// A number of a type, on the host.
///
/// # Safety
/// It is there, unless the address is null.
unsafe fn number(field: &str, dtype: Dtype, passed: &Passed<'_>) -> Result<Const, Failure> {
    let wanted = u64::from(dtype.bytes());
    if passed.bytes != wanted {
        let allowed = format_args!("{wanted}, those of one {}", dtype.name());
        return Err(Failure::invalid(format_args!("bytes of {field}"), passed.bytes, allowed));
    }
    // SAFETY: as the caller says.
    let data = unsafe { on_host(field, passed.data, wanted)? };
    let word = || <[u8; 4]>::try_from(data).ok();
    let found = match dtype {
        Dtype::I32 => word().map(|w| Const::I32(i32::from_ne_bytes(w))),
        Dtype::U32 => word().map(|w| Const::U32(u32::from_ne_bytes(w))),
        Dtype::F32 => word().map(|w| Const::F32(u32::from_ne_bytes(w))),
        Dtype::U64 => <[u8; 8]>::try_from(data).ok().map(|w| Const::U64(u64::from_ne_bytes(w))),
        Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => None,
    };
    found.ok_or_else(|| {
        Failure::invalid(format_args!("type of {field}"), dtype.name(), "i32, u32, u64 or f32")
    })
}

impl Operation {
    fn new(pack: &Pack, ranks: &Ranks, family: &str, key: &str) -> Result<Operation, Failure> {
        let (key, target) =
            (settings(key)?, ranks.gpu().ok().map(|world| world.members()[0].gpu.info().target));
        let size = match ranks {
            Ranks::Gpu(world) => world.ranks(),
            Ranks::Simulated(simulated) => simulated.ranks(),
        };
        let variant = pack.select(family, key, size, target)?;
        let parameter = |name: &str, param: &ParamSpec| Parameter {
            name: name.to_owned(),
            dtype: param.dtype,
            is_output: param.binding.writes(),
        };
        let params = variant.params();
        let (numbers, buffers): (Vec<_>, Vec<_>) = params.iter().partition(|p| p.kind == ParamKind::Scalar);
        let numbers = numbers.iter().map(|p| parameter(&p.name, p)).collect();
        let (operands, on) = match ranks {
            Ranks::Gpu(world) => {
                let spec = [LaunchSpec::new(family, variant)];
                let made = op::Operation::new(world, &spec, pack)?;
                let operands = made.ranks()[0].operands().iter().map(|o| parameter(&o.name, &o.param));
                (operands.collect(), On::Gpu(Mutex::new(made)))
            }
            Ranks::Simulated(simulated) => {
                let own = buffers.iter().filter(|p| p.binding != Binding::State);
                let operands = own.map(|p| parameter(&p.name, p)).collect();
                (operands, On::Simulated(SimOperation::new(Arc::clone(simulated), variant)?))
            }
        };
        Ok(Operation { operands, numbers, on })
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.operands.iter().chain(&self.numbers).map(|p| p.name.as_str()).collect();
        names.join(", ")
    }

    /// The arguments of as many ranks, one rank's after the other's.
    ///
    /// # Safety
    /// `arguments` has `count` for each rank, whose texts end with NUL.
    unsafe fn read<'a>(
        &self,
        arguments: *const PeerwarpArgument,
        count: usize,
        ranks: usize,
    ) -> Result<Vec<Vec<Passed<'a>>>, Failure> {
        let wanted = self.operands.len() + self.numbers.len();
        if count != wanted || (arguments.is_null() && wanted > 0) {
            let value = if count == wanted { "null".to_owned() } else { count.to_string() };
            return Err(Failure::invalid(
                "arguments",
                value,
                format_args!("{wanted} for a rank: {}", self.names()),
            ));
        }
        if wanted == 0 {
            return Ok(vec![vec![]; ranks]);
        }
        // SAFETY: as the caller says.
        let all = unsafe { std::slice::from_raw_parts(arguments, count * ranks) };
        let one = |(at, argument): (usize, &PeerwarpArgument)| {
            let PeerwarpArgument { name, data, bytes, dtype } = *argument;
            // SAFETY: as the caller says.
            let name = unsafe { text(format_args!("name of argument {at}"), name)? };
            let dtype = match dtype.is_null() {
                true => None,
                // SAFETY: as the caller says.
                false => Some(unsafe { text(format_args!("dtype of {name}"), dtype)? }),
            };
            Ok(Passed { name, dtype, data, bytes })
        };
        let of_rank = |all: &[PeerwarpArgument]| all.iter().enumerate().map(one).collect();
        all.chunks(count).map(of_rank).collect()
    }

    /// The arguments of a rank by parameter. `of` says in errors which rank it is.
    ///
    /// # Safety
    /// Numbers are where the arguments say.
    unsafe fn arranged<'a>(&self, given: &[Passed<'a>], of: &str) -> Result<Arranged<'a>, Failure> {
        let all = || self.operands.iter().chain(&self.numbers);
        for (at, passed) in given.iter().enumerate() {
            if all().all(|p| p.name != passed.name) {
                return Err(Failure::invalid(format_args!("parameter{of}"), passed.name, self.names()));
            }
            if given[..at].iter().any(|earlier| earlier.name == passed.name) {
                return Err(Failure::invalid(format_args!("{}{of}", passed.name), "two arguments", "one"));
            }
        }
        let find = |param: &Parameter| {
            let found = given.iter().find(|passed| passed.name == param.name);
            let names = || format!("an argument for each of {}", self.names());
            let found = found
                .ok_or_else(|| Failure::invalid(format_args!("{}{of}", param.name), "nothing", names()))?;
            match found.dtype {
                Some(dtype) if dtype != param.dtype.name() => {
                    let field = format_args!("dtype of {}{of}", param.name);
                    Err(Failure::invalid(field, dtype, param.dtype.name()))
                }
                _ => Ok(*found),
            }
        };
        let operands = self.operands.iter().map(find).collect::<Result<_, Failure>>()?;
        let value = |param: &Parameter| {
            let field = format!("{}{of}", param.name);
            let found = find(param)?;
            // SAFETY: as the caller says.
            Ok((param.name.clone(), unsafe { number(&field, param.dtype, &found)? }))
        };
        let numbers = self.numbers.iter().map(value).collect::<Result<_, Failure>>()?;
        Ok(Arranged { operands, numbers })
    }
}

/// Opens the pack in a folder. All of its files are read, and compared with the hashes in its manifest.
///
/// # Safety
/// `folder` is null or ends with NUL; `pack` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_pack_open(
    folder: *const c_char,
    pack: *mut *mut PeerwarpPack,
) -> PeerwarpResult {
    guarded(|| {
        // SAFETY: as the caller says.
        unsafe { handles::put(pack, || Ok(PackFile(Pack::open(Path::new(text("folder", folder)?))?))) }
    })
}

/// Frees a pack. Its operations stay.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_pack_free(pack: *mut PeerwarpPack) -> PeerwarpResult {
    guarded(|| handles::take::<_, PackFile>(pack).map(drop))
}

/// Makes a kernel of a pack an operation of a world. All ranks do, in the same order.
///
/// @param key fields of the family's key: `elements=1000,dtype=f32`. The world says the number of ranks. The variant is the one for
/// just this key, else the one that covers it with as little more as there is.
///
/// # Safety
/// Texts are null or end with NUL; `operation` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_operation_new(
    pack: *mut PeerwarpPack,
    world: *mut PeerwarpWorld,
    family: *const c_char,
    key: *const c_char,
    operation: *mut *mut PeerwarpOperation,
) -> PeerwarpResult {
    guarded(|| {
        let (pack, world) = (handles::get::<_, PackFile>(pack)?, handles::get::<_, Ranks>(world)?);
        // SAFETY: as the caller says.
        let (family, key) = unsafe { (text("family", family)?, text("key", key)?) };
        // SAFETY: as the caller says.
        unsafe { handles::put(operation, || Operation::new(&pack.0, &world, family, key)) }
    })
}

/// Launches the kernel of an operation on this rank's GPU, with an argument for each parameter, in any order. Allocates nothing on the
/// GPU, waits for nothing, and may be captured in a graph. `peerwarp_world_finish` tells of a wait that ran out of time.
///
/// # Safety
/// Tensors are memory of the rank's GPU until the launch has ended; launches of a rank are in the order of one stream. `stream` is null
/// or a `cudaStream_t` or `hipStream_t` of that GPU. An operation that was captured is freed after its graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_launch(
    operation: *mut PeerwarpOperation,
    arguments: *const PeerwarpArgument,
    count: usize,
    stream: *mut c_void,
) -> PeerwarpResult {
    guarded(|| {
        let operation = handles::get::<_, Operation>(operation)?;
        let On::Gpu(made) = &operation.on else {
            let allowed = "an operation of a world of GPUs; `peerwarp_simulate` runs this one";
            return Err(Failure::invalid("operation", "of a simulated world", allowed));
        };
        // SAFETY: as the caller says.
        let Arranged { operands, numbers } = unsafe {
            let given = operation.read(arguments, count, 1)?;
            operation.arranged(&given[0], "")?
        };
        let operands: Vec<_> = operands.iter().map(|o| (o.data.addr() as u64, o.bytes)).collect();
        let mut made = lock(made);
        let rank = &mut made.ranks_mut()[0];
        numbers.into_iter().try_for_each(|(name, number)| rank.set_number(&name, number))?;
        // SAFETY: as the caller says.
        unsafe { rank.launch_sized(0, &operands, self::stream(stream)) }.map_err(Failure::from)
    })
}

/// Runs the kernel of an operation on simulated ranks, and waits for its end. `arguments` has `count` for rank 0, then for rank 1, and
/// so on; each rank has tensors of its own.
///
/// # Safety
/// Tensors are memory of the host, and nothing else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_simulate(
    operation: *mut PeerwarpOperation,
    arguments: *const PeerwarpArgument,
    count: usize,
) -> PeerwarpResult {
    guarded(|| {
        let operation = handles::get::<_, Operation>(operation)?;
        let On::Simulated(simulated) = &operation.on else {
            let allowed = "an operation of a simulated world; `peerwarp_launch` launches this one";
            return Err(Failure::invalid("operation", "of a world of GPUs", allowed));
        };
        // SAFETY: as the caller says.
        let ranks = unsafe {
            let given = operation.read(arguments, count, simulated.ranks() as usize)?;
            let each = given.iter().enumerate();
            each.map(|(rank, given)| operation.arranged(given, &format!("[{rank}]")))
                .collect::<Result<Vec<_>, _>>()?
        };
        // SAFETY: as the caller says.
        unsafe { simulate(&operation.operands, simulated, &ranks) }
    })
}

/// # Safety
/// As of [`peerwarp_simulate`].
unsafe fn simulate(
    params: &[Parameter],
    simulated: &SimOperation,
    ranks: &[Arranged<'_>],
) -> Result<(), Failure> {
    // By parameter and rank.
    let used = |param: &Parameter, at: usize| {
        let of_rank =
            |rank: &Arranged<'_>| simulated.used(&param.name, rank.operands[at].bytes, &rank.numbers);
        ranks.iter().map(of_rank).collect::<Result<Vec<_>, _>>()
    };
    let used = params.iter().enumerate().map(|(at, param)| used(param, at));
    let used = used.collect::<Result<Vec<_>, _>>()?;
    let each = params.iter().enumerate().flat_map(|(at, param)| {
        ranks.iter().zip(&used[at]).map(move |(rank, &bytes)| (param, rank.operands[at].data, bytes))
    });
    op::apart(each.map(|(param, data, bytes)| Extent {
        name: &param.name,
        is_output: param.is_output,
        ptr: data.addr() as u64,
        bytes,
    }))?;
    let copied = |(at, param): (usize, &Parameter)| {
        let of_rank = |(number, rank): (usize, &Arranged<'_>)| {
            let field = format!("{}[{number}]", param.name);
            // SAFETY: as the caller says.
            Ok(unsafe { on_host(&field, rank.operands[at].data, used[at][number])? }.to_vec())
        };
        let each = ranks.iter().enumerate().map(of_rank).collect::<Result<Vec<_>, Failure>>()?;
        Ok((param.name.clone(), each))
    };
    let operands = params.iter().enumerate().map(copied).collect::<Result<Vec<_>, Failure>>()?;
    let numbers = ranks.iter().map(|rank| rank.numbers.clone()).collect();
    for (name, outputs) in simulated.run(operands, numbers)? {
        for (at, _) in params.iter().enumerate().filter(|(_, param)| param.name == name) {
            for (rank, bytes) in ranks.iter().zip(&outputs) {
                // SAFETY: as the caller says; so many bytes were read from there.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), rank.operands[at].data.cast(), bytes.len())
                };
            }
        }
    }
    Ok(())
}

/// Frees an operation, after what this process's GPU runs has ended.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_operation_free(operation: *mut PeerwarpOperation) -> PeerwarpResult {
    guarded(|| handles::take::<_, Operation>(operation).map(drop))
}
