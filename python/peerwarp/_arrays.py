"""Arrays in and out. NumPy is imported when the first array comes, as it takes longer than all of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from peerwarp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

#: NumPy's types by the names of the kernels'. NumPy has no bfloat16 of its own: its bits are a uint16, or `ml_dtypes` has it.
FLOATS = {"f32": ("float32",), "fp16": ("float16",), "bf16": ("uint16", "bfloat16")}
#: The same with integers, of which collectives move every bit: bytes are `fp8` to kernels, whose floats have a byte.
ELEMENTS = FLOATS | {"i32": ("int32",), "fp8": ("uint8",)}


def as_numpy(field: str, value: Any) -> np.ndarray:
    """A NumPy array of an array in the CPU's memory, without copying it."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
        raise InvalidArgument(field, type(value).__name__, "a NumPy array, or one with __dlpack__ in the CPU's memory")
    try:
        return np.from_dlpack(value)
    except Exception as error:  # what others raise there is theirs to choose
        allowed = "an array with __dlpack__ in the CPU's memory, of a type that NumPy has (bfloat16: its bits as uint16)"
        raise InvalidArgument(field, f"{type(value).__name__} ({error})", allowed) from error


def each_rank(field: str, values: Any, ranks: int) -> list[np.ndarray]:
    """One array for each rank."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InvalidArgument(field, type(values).__name__, f"a list of {ranks} arrays, one for each rank")
    if len(values) != ranks:
        raise InvalidArgument(field, f"{len(values)} arrays", f"{ranks}, one for each rank")
    return [as_numpy(f"{field}[{rank}]", value) for rank, value in enumerate(values)]


def checked(field: str, array: np.ndarray, dtypes: Sequence[str], shape: tuple[int | None, ...]) -> np.ndarray:
    """The array, if it has one of these types, this shape (`None` is any length) and is contiguous."""
    if array.dtype.name not in dtypes or not array.dtype.isnative:
        raise InvalidArgument(f"{field}.dtype", array.dtype, " or ".join(dtypes))
    fits = len(shape) == array.ndim and all(want in (None, has) for want, has in zip(shape, array.shape, strict=True))
    if not fits:
        words = ", ".join("any" if want is None else str(want) for want in shape)
        raise InvalidArgument(f"{field}.shape", array.shape, f"({words})")
    return contiguous(field, array)


def contiguous(field: str, array: np.ndarray) -> np.ndarray:
    """The array, if its elements are in memory one after another."""
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{field}.strides", array.strides, "a contiguous array: numpy.ascontiguousarray copies it")
    return array


def element_name(field: str, dtype: np.dtype, reduced: bool) -> str:
    """The kernels' name of a type that collectives take; bytes are not `reduced`."""
    for name, dtypes in ELEMENTS.items():
        if dtype.name in dtypes and dtype.isnative and not (reduced and name == "fp8"):
            return name
    allowed = "float32, float16, uint16 (the bits of a bfloat16), bfloat16 or int32"
    raise InvalidArgument(f"{field}.dtype", dtype, allowed if reduced else f"{allowed}, or uint8")


def outputs(field: str, out: Any, like: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The arrays that results go to, if the caller gives some: each as one of `like`."""
    import numpy as np

    if out is None:
        return None
    arrays = each_rank(field, out, len(like))
    for rank, (array, wanted) in enumerate(zip(arrays, like, strict=True)):
        checked(f"{field}[{rank}]", array, (wanted.dtype.name,), wanted.shape)
        if not array.flags.writeable:
            raise InvalidArgument(f"{field}[{rank}]", "read-only", "an array that can be written")
    for rank, array in enumerate(arrays):
        if any(np.may_share_memory(array, other) for other in arrays[:rank]):
            raise InvalidArgument(f"{field}[{rank}]", "memory of another rank's", "memory of its own for each rank")
    return arrays


def apart(field: str, arrays: Sequence[np.ndarray], other: str, others: Sequence[np.ndarray]) -> None:
    """Whether no array has memory of one of the others."""
    import numpy as np

    for rank, array in enumerate(arrays):
        if any(np.may_share_memory(array, one) for one in others):
            raise InvalidArgument(f"{field}[{rank}]", f"memory of {other}", "memory of its own")


def delivered(results: Sequence[np.ndarray], into: list[np.ndarray] | None) -> list[np.ndarray]:
    """The results, in the caller's arrays if there are some."""
    import numpy as np

    if into is None:
        return list(results)
    for array, result in zip(into, results, strict=True):
        np.copyto(array, result)
    return into


def from_bytes(raw: bytes, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A new array of these bytes, which may be written."""
    import numpy as np

    return np.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits of float32 values rounded to bfloat16, to the nearest and to even, as uint16. NaNs stay NaNs."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 bits."""
    import numpy as np

    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
