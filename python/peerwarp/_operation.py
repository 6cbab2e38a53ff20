"""Kernels of any family as operations of a world."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peerwarp import _arrays, _core
from peerwarp._device import Device
from peerwarp._world import World, runs_on
from peerwarp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

#: NumPy's types by the kernels' names. Types that NumPy lacks come as their bits, or as `ml_dtypes` has them.
ARRAYS = {
    "f32": ("float32",),
    "fp16": ("float16",),
    "bf16": ("uint16", "bfloat16"),
    "fp8": ("uint8", "float8_e4m3fn"),
    "i32": ("int32",),
    "u32": ("uint32", "int32"),
    "u64": ("uint64", "int64"),
}
#: PyTorch's types by the kernels' names.
TENSORS = ARRAYS | {"bf16": ("bfloat16",), "fp8": ("float8_e4m3fn", "uint8")}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel that callers pass.

    Attributes:
        name: its name.
        dtype: the type of its elements: `"f32"`, `"bf16"`, `"u32"`.
        row: elements of a row, where it is a matrix or has as many rows as a number says; else 0.
        elements: how many elements it has, with all of its rows; 0 of a number.
        rows: the number that says how many rows there are, if one does.
        is_output: whether the kernel writes it.
    """

    name: str
    dtype: str
    row: int
    elements: int
    rows: str | None
    is_output: bool

    @property
    def is_number(self) -> bool:
        """Whether it is passed by value."""
        return self.elements == 0

    def check(self, field: str, dtype: str, dtypes: Sequence[str], shape: Sequence[int]) -> None:
        """Whether an array of this type and shape can be passed."""
        if dtype not in dtypes:
            raise InvalidArgument(f"{field}.dtype", dtype, " or ".join(dtypes))
        elements, row = math.prod(shape), self.row
        if self.rows is None and elements != self.elements:
            raise InvalidArgument(f"{field}.shape", tuple(shape), f"{self.elements} elements{self._in_rows()}")
        if (self.rows is not None and elements % row) or (row and len(shape) > 1 and shape[-1] != row):
            raise InvalidArgument(f"{field}.shape", tuple(shape), f"rows of {row} elements")

    def _in_rows(self) -> str:
        return f", in rows of {self.row}" if self.row else ""


class Operation:
    """A kernel of any family on the ranks of a world. Made by `Pack.operation` or `peerwarp.operation`.

    It is called with a tensor or number for each of the kernel's parameters that are the caller's, by name: `op(x=x, out=out)`.
    Outputs are written in place. Tensors are contiguous, of the parameter's type and number of elements, and outputs share memory
    with nothing else that is passed.

    In a world of GPUs tensors are of PyTorch, or of a library that speaks DLPack, on this rank's GPU. The kernel is launched on
    PyTorch's current stream, and nothing is allocated or waited for: calls may be captured in a CUDA graph. Calls are in the order
    of one stream. All ranks make their operations in the same order.

    In a simulated world each tensor is a list with one array for each rank, and a number is one for all ranks or such a list.

    Attributes:
        name: the name of the kernel's variant.
        family: the name of its family.
        parameters: what a call passes, in the order of the kernel's parameters.
    """

    def __init__(self, world: World, kernel: _core.Kernel) -> None:
        on = runs_on(world)
        self._world = world
        self.name, self.family = kernel.name(), kernel.family()
        self.parameters = tuple(Parameter(*passed) for passed in kernel.passed())
        self._device = on if isinstance(on, Device) else None
        self._core: _core.DeviceOperation | _core.SimulatedOperation
        if isinstance(on, Device):
            on.settled("an operation")
            self._core = _core.DeviceOperation(on.core, kernel, on.exchange)
        else:
            self._core = _core.SimulatedOperation(on, kernel)

    @property
    def world(self) -> World:
        """The world that it runs in."""
        return self._world

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that it has on this rank's GPU; 0 in a simulated world."""
        return self._core.memory_bytes() if isinstance(self._core, _core.DeviceOperation) else 0

    def __call__(self, **passed: Any) -> None:
        """Runs the kernel. See `Operation`."""
        if isinstance(self._core, _core.DeviceOperation):
            if not self._core.run(passed):
                self._launch(self._core, passed)
        else:
            self._simulate(self._core, passed)

    def _launch(self, core: _core.DeviceOperation, passed: Mapping[str, Any]) -> None:
        """A call whose tensors the native part does not know: says what is wrong, or passes addresses."""
        assert self._device is not None
        tensors, numbers = [], []
        for parameter in self._complete(passed):
            value, name = passed[parameter.name], parameter.name
            if parameter.is_number:
                numbers.append(_number(name, value))
                continue
            tensor = self._device.taken(name, value)
            parameter.check(name, str(tensor.dtype).removeprefix("torch."), TENSORS[parameter.dtype], tensor.shape)
            self._device.placed(name, tensor)
            tensors.append((tensor, tensor.numel() * tensor.element_size()))
        addresses = [(tensor.data_ptr(), size) for tensor, size in tensors]
        core.launch(addresses, numbers, self._device.stream(self._device.number))

    def _simulate(self, core: _core.SimulatedOperation, passed: Mapping[str, Any]) -> None:
        import numpy as np

        ranks = self._world.ranks
        arrays: dict[str, list[np.ndarray]] = {}
        numbers: dict[str, list[int | float]] = {}
        complete = self._complete(passed)
        for parameter in complete:
            name, value = parameter.name, passed[parameter.name]
            if parameter.is_number:
                each = value if isinstance(value, (list, tuple)) else [value] * ranks
                if len(each) != ranks:
                    raise InvalidArgument(name, f"{len(each)} numbers", f"one, or {ranks}, one for each rank")
                numbers[name] = [_number(f"{name}[{rank}]", one) for rank, one in enumerate(each)]
            else:
                arrays[name] = self._arrays(parameter, value)
        for parameter in complete:
            if parameter.rows is not None:
                self._has_rows(parameter, arrays[parameter.name], numbers[parameter.rows])
        outputs = [parameter.name for parameter in complete if parameter.is_output]
        for name in outputs:
            for other in arrays:
                if other != name:
                    _arrays.apart(name, arrays[name], other, arrays[other])
        given = [(name, [array.tobytes() for array in each]) for name, each in arrays.items()]
        for name, results in zip(outputs, core.run(given, list(numbers.items())), strict=True):
            for array, raw in zip(arrays[name], results, strict=True):
                np.copyto(array, np.frombuffer(raw, dtype=array.dtype).reshape(array.shape))

    def _arrays(self, parameter: Parameter, values: Any) -> list[np.ndarray]:
        import numpy as np

        each = _arrays.each_rank(parameter.name, values, self._world.ranks)
        for rank, array in enumerate(each):
            field = f"{parameter.name}[{rank}]"
            parameter.check(field, array.dtype.name, ARRAYS[parameter.dtype], array.shape)
            _arrays.contiguous(field, array)
            if parameter.is_output and not array.flags.writeable:
                raise InvalidArgument(field, "read-only", "an array that can be written")
            if parameter.is_output and any(np.may_share_memory(array, other) for other in each[:rank]):
                raise InvalidArgument(field, "memory of another rank's", "memory of its own for each rank")
        return each

    def _has_rows(self, parameter: Parameter, arrays: Sequence[np.ndarray], numbers: Sequence[int | float]) -> None:
        for rank, (array, rows) in enumerate(zip(arrays, numbers, strict=True)):
            if array.size < rows * parameter.row:
                allowed = f"{rows} rows or more of {parameter.row} elements, as {parameter.rows} says"
                raise InvalidArgument(f"{parameter.name}[{rank}].shape", array.shape, allowed)

    def _complete(self, passed: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """All parameters, if each has something and nothing else is passed."""
        names = [parameter.name for parameter in self.parameters]
        if missing := [name for name in names if name not in passed]:
            raise InvalidArgument(", ".join(missing), "nothing", f"a value for each of {', '.join(names)}")
        if unknown := [name for name in passed if name not in names]:
            raise InvalidArgument("parameter", ", ".join(unknown), ", ".join(names))
        return self.parameters

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"


def _number(field: str, value: Any) -> int | float:
    if isinstance(value, bool) or not (hasattr(value, "__index__") or hasattr(value, "__float__")):
        raise InvalidArgument(field, value, "a number")
    return int(value) if hasattr(value, "__index__") else float(value)


def settings(key: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Key fields as texts."""
    return [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in key.items()]


def operation(family: str, world: World, **key: Any) -> Operation:
    """An operation of a family that comes with Peerwarp, for a key: `operation("matmul", world, m=64, n=64, k=64, dtype="bf16")`.

    The variant is chosen for the world's GPU, as `MoeAllToAll` and `Collectives` choose theirs, and compiled when it is made. The
    world says the number of ranks.
    """
    core = _gpu_world(world)
    return Operation(world, _core.shipped_kernel(family, settings(key), world.ranks, core))


def _gpu_world(world: Any) -> _core.GpuWorld | None:
    on = runs_on(world)
    return on.core if isinstance(on, Device) else None
