"""Operations on this process's GPU, on tensors of PyTorch.

The native part looks at tensors by DLPack's functions for C, and does all of a call, where PyTorch has them (2.10 and newer) and
tensors are as they have to be. Else it does nothing, and what follows here looks at each tensor, says what is wrong with it, and
passes addresses.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from peerwarp import _core
from peerwarp.errors import InvalidArgument, PeerwarpError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

#: The kernels' names of PyTorch's types, by PyTorch's names.
REDUCED = {"torch.float32": "f32", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.int32": "i32"}
#: The same of collectives that only move elements: bytes are `fp8` to kernels, whose floats have a byte.
MOVED = REDUCED | {"torch.uint8": "fp8"}
#: Types of the elements of an operation's memory: what an array interface calls one of this size, and what PyTorch does.
ELEMENTS = {
    "bf16": ("<i2", "bfloat16", 2),
    "fp16": ("<f2", "float16", 2),
    "fp8": ("|u1", "float8_e4m3fn", 1),
    "fnuz": ("|u1", "float8_e4m3fnuz", 1),
    "i8": ("|i1", "int8", 1),
    "u8": ("|u1", "uint8", 1),
    "f32": ("<f4", "float32", 4),
    "i32": ("<i4", "int32", 4),
}
#: Lists of sizes whose copies on the GPU are kept.
KEPT_SIZES = 64
OPS = ("sum", "max", "min", "max-nan", "min-nan", "avg")
#: Types of a byte, by PyTorch's names: rows and scales that are bytes may come as any of them.
BYTES = ("float8_e4m3fn", "uint8", "int8", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2")
#: What rows of `fp8` may come as: types whose byte of all ones is a NaN, which a packet may turn into another, or their bits.
FP8 = ("float8_e4m3fn", "float8_e5m2", "uint8")
#: What rows come out as, of which dispatch moves the bytes.
OF_BYTES = {"nvfp4": "u8", "mxfp4": "u8", "bytes": "u8", "fp8-fnuz": "fnuz", "int8": "i8"}


class Memory:
    """Memory of an operation, as CUDA's array interface tells of it. It keeps the operation alive."""

    def __init__(self, owner: object, address: int, typestr: str, shape: tuple[int, ...]) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class Device:
    """The GPU of a world's rank, and the streams that PyTorch has on it."""

    def __init__(self, core: _core.GpuWorld, rank: int, ranks: int, number: int) -> None:
        import torch

        self.torch: Any = torch
        self.core, self.rank, self.ranks, self.number = core, rank, ranks, number
        self.device = torch.device("cuda", number)
        current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.stream: Callable[[int], int] = current or (lambda gpu: torch.cuda.current_stream(gpu).cuda_stream)
        self.exchange = self._exchange()

    def _exchange(self) -> _core.Exchange | None:
        """How the native part looks at tensors; `None` where PyTorch is too old for it."""
        try:
            return _core.Exchange(self.torch.Tensor, self.number)
        except (AttributeError, TypeError, ValueError):
            return None

    def tensor(self, owner: object, address: int, element: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of memory that `owner` has."""
        typestr, name, _ = ELEMENTS[element]
        torch = self.torch
        found: Tensor = torch.as_tensor(Memory(owner, address, typestr, shape), device=self.device)
        dtype = getattr(torch, name)
        return found if found.dtype == dtype else found.view(dtype)

    def taken(self, field: str, value: Any) -> Tensor:
        """A tensor, of PyTorch or of a library that speaks DLPack."""
        if isinstance(value, self.torch.Tensor):
            return value
        if not hasattr(value, "__dlpack__"):
            raise InvalidArgument(field, type(value).__name__, f"a tensor on {self.device}")
        tensor: Tensor = self.torch.from_dlpack(value)
        return tensor

    def checked(self, field: str, value: Any, dtypes: Sequence[torch.dtype], shape: tuple[int, ...]) -> Tensor:
        """The tensor, if it is on this GPU, contiguous, of one of these types and of this shape."""
        tensor = self.taken(field, value)
        if tensor.dtype not in dtypes:
            raise InvalidArgument(f"{field}.dtype", tensor.dtype, " or ".join(map(str, dtypes)))
        if tensor.shape != shape:
            raise InvalidArgument(f"{field}.shape", tuple(tensor.shape), str(shape))
        self.placed(field, tensor)
        return tensor

    def placed(self, field: str, tensor: Tensor) -> None:
        """Whether a tensor is on this GPU, with its elements one after another."""
        if tensor.device != self.device:
            raise InvalidArgument(f"{field}.device", tensor.device, str(self.device))
        if not tensor.is_contiguous():
            raise InvalidArgument(f"{field}.strides", tensor.stride(), "a contiguous tensor: .contiguous() copies it")

    def settled(self, what: str) -> None:
        """Whether things can be made: not while a graph is captured."""
        if self.torch.cuda.is_current_stream_capturing():
            raise PeerwarpError(f"{what} is made with its first call, which cannot be captured in a graph: call it once before")


def row_capacity(rows: int) -> int:
    """Rows of a rank that an operation has room for, where ranks have lengths of their own: a power of two."""
    return 1 << max(rows - 1, 7).bit_length()


class DeviceCollectives:
    """Collectives of this process's rank. Each is made with the first call of its capacity, type and so on, by all ranks."""

    def __init__(self, device: Device, capacities: list[int]) -> None:
        self._device = device
        self._core = _core.DeviceCollectives(device.core, device.ranks, device.exchange, capacities)
        self._run = self._core.run
        #: Lengths of ranks on the GPU, by what they are: the last ones that were asked for.
        self._sizes: dict[tuple[int, ...], Tensor] = {}
        self._captured: list[Tensor] = []

    def free(self) -> None:
        self._core.free()
        self._sizes.clear()
        self._captured.clear()

    def memory_bytes(self) -> int:
        return self._core.memory_bytes()

    def run(self, name: str, x: Any, shape: Callable[[Tensor], tuple[int, ...]], out: Any, op: str, root: int) -> Tensor:
        """Launches a collective on PyTorch's current stream; `shape` says what comes out of an input."""
        if out is not None and self._run(name, x, out, op, root):
            return out  # type: ignore[no-any-return]
        device = self._device
        if op not in OPS:
            raise InvalidArgument("op", op, ", ".join(OPS))
        tensor = device.taken("x", x)
        device.placed("x", tensor)
        wanted = shape(tensor)
        if out is None:
            out = device.torch.empty(wanted, dtype=tensor.dtype, device=device.device)
        else:
            out = device.checked("out", out, (tensor.dtype,), wanted)
            if overlap(tensor, out):
                raise InvalidArgument("out", "memory of x", "memory of its own")
        elements = tensor.numel()
        dtype = self._made(name, op, root, tensor.dtype, elements)
        if elements == 0:
            return out  # type: ignore[no-any-return]
        places = (tensor.data_ptr(), out.data_ptr(), device.stream(device.number))
        self._core.launch(name, (op, root), (dtype, elements), places)
        return out  # type: ignore[no-any-return]

    def _made(self, name: str, op: str, root: int, dtype: torch.dtype, elements: int) -> str:
        """Makes a collective for a length, if it is not there and has an element. The kernels' name of its type."""
        kernels = _kernels_name(name, dtype)
        if elements > 0 and not self._core.has(name, (op, root), (kernels, elements)):
            self._device.settled(f"{name} of {elements} elements")
            self._core.make(name, (op, root), (kernels, elements))
        return kernels

    def uneven(self, name: str, x: Any, op: str, sizes: list[int], most: int | None, out: Any) -> Tensor:
        """Launches a collective whose ranks have lengths of their own, which the host knows."""
        device, torch, total = self._device, self._device.torch, sum(sizes)
        own = sizes[device.rank]
        rows, rows_out = (own, total) if name == "all_gather" else (total, own)
        tensor = device.taken("x", x)
        rest = tuple(tensor.shape[1:])
        device.checked("x", tensor, (tensor.dtype,), (rows, *rest))
        if out is None:
            out = torch.empty((rows_out, *rest), dtype=tensor.dtype, device=device.device)
        else:
            out = device.checked("out", out, (tensor.dtype,), (rows_out, *rest))
        if total * math.prod(rest) > 0:
            n = self._on_gpu(tuple(sizes))
            self._launch_uneven(name, op, (tensor, out, n), row_capacity(max(sizes) if most is None else most))
        return out  # type: ignore[no-any-return]

    def _on_gpu(self, sizes: tuple[int, ...]) -> Tensor:
        """Lengths on the GPU. The last ones are kept, and those that graphs read."""
        torch = self._device.torch
        n = self._sizes.pop(sizes, None)
        if n is None:
            self._device.settled(f"the copy of sizes {list(sizes)} on the GPU")
            n = torch.tensor(sizes, dtype=torch.int32, device=self._device.device)
        self._sizes[sizes] = n
        if torch.cuda.is_current_stream_capturing():
            self._captured.append(n)
        if len(self._sizes) > KEPT_SIZES:
            del self._sizes[next(iter(self._sizes))]
        return n

    def uneven_on_gpu(self, name: str, x: Any, op: str, sizes: Any, most: int, out: Any) -> Tensor:
        """The same with lengths on the GPU, which the host does not read: tensors may be longer than these say."""
        device = self._device
        device.checked("sizes", sizes, (device.torch.int32,), (device.ranks,))
        tensor = device.taken("x", x)
        device.placed("x", tensor)
        if out is None:
            raise InvalidArgument("out", "none", "a tensor, where sizes are on the GPU")
        rows = device.taken("out", out)
        device.checked("out", rows, (tensor.dtype,), (rows.shape[0] if rows.dim() else 0, *tensor.shape[1:]))
        self._launch_uneven(name, op, (tensor, rows, sizes), row_capacity(most))
        return out  # type: ignore[no-any-return]

    def _launch_uneven(self, name: str, op: str, x_out_n: tuple[Tensor, Tensor, Tensor], most: int) -> None:
        """Launches on tensors that are as they have to be; `most` rows of a rank have room."""
        device, (x, out, n) = self._device, x_out_n
        dtype, row = _kernels_name(name, x.dtype), math.prod(x.shape[1:])
        if not 1 <= row <= 65536:
            raise InvalidArgument("x.shape", tuple(x.shape), "rows of 1 to 65536 elements, with sizes")
        if overlap(x, out):
            raise InvalidArgument("out", "memory of x", "memory of its own")
        # A tensor may have room for more rows than a rank can have.
        own, all_of_them = (x, out) if name == "all_gather" else (out, x)
        rows = (min(own.shape[0], most), min(all_of_them.shape[0], most * device.ranks))
        places = (x.data_ptr(), out.data_ptr(), n.data_ptr(), device.stream(device.number))
        may = not device.torch.cuda.is_current_stream_capturing()
        if not self._core.uneven((name, op, dtype), (row, most), rows, places, may):
            device.settled(f"{name} of {most} rows of {row} elements with sizes")


def _kernels_name(name: str, dtype: torch.dtype) -> str:
    """The kernels' name of a type that a collective takes."""
    names = REDUCED if name in ("all_reduce", "reduce_scatter") else MOVED
    kernels = names.get(str(dtype))
    if kernels is None:
        raise InvalidArgument("x.dtype", dtype, ", ".join(names))
    return kernels


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    start, other = a.data_ptr(), b.data_ptr()
    return start < other + b.numel() * b.element_size() and other < start + a.numel() * a.element_size()


class DispatchedTensors:
    """What dispatch brought to this process's rank. `R` ranks, `T` the most tokens of a rank, `K` topk.

    All are tensors on the GPU, in memory of the operation: the next dispatch of the same capacity overwrites them. How many rows
    came is known there.

    Attributes:
        rows: `(places, hidden)`, of 4 bits `(places, hidden / 2)`. Rank-major: `places` is `R * T`, and row `source * T + token` is
            what came of that token. Expert-major: it is `R * T * K`, and some more where experts are aligned; rows are sorted by
            expert, source, token and k. Expert-strided: it is the most experts of a rank times `R * T`. With `max_rows` they
            are so many, or so many of each expert. Where no row came there is anything.
        scales: `(places, ..)`, as dispatch takes them: float32, or uint8.
        gather: rank-major only: int32 `(R * T * K,)`, the numbers of the rows of this rank's experts, expert by expert.
        ids: rank-major only: int32 `(R * T, K)`, ids among all experts, `empty_id` in entries that are not this rank's own.
        expert_start: int32 `(experts of the rank + 1,)`: the rows of the e-th own expert are `expert_rows[e]` from here on, in
            `gather` if rank-major and in `rows` if not.
        expert_rows: int32 `(experts of the rank,)`: tokens of each expert, counted on the GPU.
        overflow: with `max_rows` or expert-strided only: int32 `(1,)`, how many rows had no place. They contribute nothing.
        needed: with it: int32 `(1,)`, the `max_rows` with which all would have had one.
        missing: if the operation counts it: int32 `(T,)`. After combine, how many entries of each of this rank's tokens name
            experts of ranks that are not active. The token's row is what its other entries yield.
        tokens_from: int32 `(R,)`: how many tokens each source had.
        first_expert: the id of the rank's first expert; its experts are contiguous.
        capacity: `T`.
    """

    __slots__ = ("_kept", "_n", "_number", "_step")

    def __init__(self, step: Step, number: int, n: int, kept: tuple[Any, ...]) -> None:
        self._step, self._number, self._n, self._kept = step, number, n, kept

    def __getattr__(self, name: str) -> Tensor:
        # Asked for what is no attribute of its own; of one that is copied there are none yet.
        if name.startswith("_"):
            raise AttributeError(name)
        found = self._step.buffers.get(name)
        if found is None:
            moe = self._step.moe
            raise AttributeError(f"a dispatch of layout {moe.layout} and type {moe.dtype} has no {name}")
        return found

    @property
    def first_expert(self) -> int:
        return self._step.moe.first_expert

    @property
    def layout(self) -> str:
        return self._step.moe.layout

    @property
    def capacity(self) -> int:
        return self._step.tokens

    @property
    def local_ids(self) -> Tensor:
        """Rank-major only: int32 `(R * T, K)`, ids among this rank's experts, -1 in entries that are not its own. Computed anew."""
        ids = self._step.buffers["ids"]
        return (ids - self.first_expert).masked_fill(self._foreign(ids), -1)

    @property
    def weights(self) -> Tensor:
        """Rank-major only: float32 `(R * T, K)`, 0 in entries that are not this rank's own. Computed anew."""
        return self._step.buffers["sent_weights"].masked_fill(self._foreign(self._step.buffers["ids"]), 0.0)

    def _foreign(self, ids: Tensor) -> Tensor:
        """Where entries are not this rank's own."""
        empty_id = self._step.moe.empty_id
        return ids < 0 if empty_id < 0 else ids == empty_id


class Step:
    """The memory of one capacity: the most tokens of a rank, and what dispatch leaves, by its names in Python."""

    __slots__ = ("buffers", "moe", "number", "places", "tokens")

    def __init__(self, moe: DeviceMoe, number: int, tokens: int, buffers: dict[str, Tensor]) -> None:
        self.moe, self.number, self.tokens, self.buffers = moe, number, tokens, buffers
        self.places: int = buffers["rows"].shape[0]


class DeviceMoe:
    """Dispatch and combine of this process's rank."""

    def __init__(
        self,
        device: Device,
        sizes: tuple[int, int, int],
        capacities: Sequence[int],
        rows_standing: tuple[tuple[str, str | None, bool, bool, str, tuple[str, str]], tuple[str, int, int]],
        id_sms_launches: tuple[int, int | None, tuple[bool, bool, tuple[int, int, bool, bool]]],
    ) -> None:
        device.settled("MoeAllToAll")
        self.device, ((rows, combined, self._quantises, _, _, of_scales), (self.layout, _, _)) = device, rows_standing
        self._scale_layout = of_scales[0]
        self.empty_id = id_sms_launches[0]
        #: What rows travel as; of bytes without their sizes.
        self.dtype = "bytes" if rows.startswith("bytes") else rows
        (self.hidden, self.experts, self.topk), self.capacities = sizes, list(capacities)
        self._core = _core.DeviceMoe(device.core, sizes, self.capacities, rows_standing, id_sms_launches, device.exchange)
        torch = device.torch
        self.combined = torch.float16 if "fp16" in (rows, combined) else torch.bfloat16
        row_bytes, scale_bytes, floats = self._core.row_sizes()
        #: Kernels' names of what rows and scales come out as, and elements of a row of each.
        self._row = self.dtype if self.dtype in ELEMENTS else OF_BYTES.get(self.dtype, "fp8")
        self._row_elements = row_bytes // ELEMENTS[self._row][2]
        self._scale = "f32" if floats else "u8"
        self._scales = scale_bytes // ELEMENTS[self._scale][2]
        any_byte, fp8 = (tuple(getattr(torch, name) for name in names if hasattr(torch, name)) for names in (BYTES, FP8))
        plain = self._quantises or self.dtype in ("bf16", "fp16")
        is_fp8 = self.dtype.startswith("fp8") and self.dtype != "fp8-fnuz"
        self._sent = (self.combined,) if plain else fp8 if is_fp8 else any_byte
        self._sent_elements = self.hidden if plain else self._row_elements
        #: Whether one scale of all rows is given.
        self._of_tensor = self._quantises and self.dtype == "nvfp4"
        self._sent_scales_row = int(self._of_tensor) if self._quantises else self._scales
        self._sent_scales = (torch.float32,) if floats or self._of_tensor else any_byte
        firsts, rank = self._core.first_experts(), device.rank
        self.first_expert, self._own = firsts[rank], firsts[rank + 1] - firsts[rank]
        self.steps = [Step(self, at, tokens, self._views(at)) for at, tokens in enumerate(self.capacities)]
        self._largest = self.steps[-1]
        self._ids = torch.int64 if id_sms_launches[2][2][3] else torch.int32
        #: Tensors that dispatches read and count in.
        self._tables: tuple[Any, ...] = ()
        self._send, self._bring_back = self._core.send_tensors, self._core.bring_back_tensors

    def set_wait_budget(self, seconds: float) -> None:
        self._core.set_wait_budget(seconds)

    def set_tables(self, tables: tuple[Any, Any, Any]) -> None:
        """Where experts are, how many replicas each has, and the counts of their entries, where there are such tensors."""
        self._tables = tables
        place, replicas, load = (0 if one is None else one.data_ptr() for one in tables)
        self._core.set_tables((place, replicas, load))

    def memory_bytes(self) -> list[int]:
        return self._core.memory_bytes()

    def kernels(self) -> list[tuple[str, str]]:
        return self._core.kernels()

    def step(self, tokens: int | None) -> Step:
        """The smallest capacity that has room for so many tokens of a rank, or the largest if no number is given."""
        if tokens is None:
            return self._largest
        at = bisect_left(self.capacities, tokens)
        if at == len(self.steps):
            raise InvalidArgument("max_tokens", tokens, f"at most {self._largest.tokens}, the largest capacity")
        return self.steps[at]

    def _views(self, step: int) -> dict[str, Tensor]:
        """Tensors of what dispatch leaves in one capacity, by their names in Python."""
        ranks = self.device.ranks
        shapes: dict[str, tuple[str, str, tuple[int, ...]]] = {
            "rows": ("rows", self._row, (self._row_elements,)),
            "row_scale": ("scales", self._scale, (self._scales,)),
            "expert_start": ("expert_start", "i32", ()),
            "expert_rows": ("expert_rows", "i32", ()),
            "overflow": ("overflow", "i32", ()),
            "needed": ("needed", "i32", ()),
            "n_from": ("tokens_from", "i32", ()),
            "gather": ("gather", "i32", ()),
            "entry_expert": ("ids", "i32", (self.topk,)),
            "missing": ("missing", "i32", ()),
        }
        if self.layout == "rank_major":
            shapes["weight_from"] = ("sent_weights", "f32", (self.topk,))
        lengths = {"expert_start": self._own + 1, "expert_rows": self._own, "tokens_from": ranks}
        views = {}
        for name, address, size in self._core.buffers(step):
            if name not in shapes or size == 0:
                continue
            called, element, row = shapes[name]
            if name == "row_scale" and self._scale_layout != "row":
                views[called] = self._ordered(step, address)
                continue
            first = size // (ELEMENTS[element][2] * math.prod(row))
            views[called] = self.device.tensor(self._core, address, element, (first, *row))[: lengths.get(called, first)]
        return views

    def _ordered(self, step: int, address: int) -> Tensor:
        """Scales that do not stand row by row."""
        matrices, rows, whole, words = self._core.scale_shapes()[step]
        if self._scale_layout == "128x4":
            all_of_them = self.device.tensor(self._core, address, "u8", (matrices, whole, 4 * words))
        else:
            kind = "f32" if self._scale == "f32" else "i32"
            columns = self.device.tensor(self._core, address, kind, (matrices, words, whole))
            all_of_them = columns.transpose(1, 2)[:, :rows]
        return all_of_them if self.layout == "expert_strided" else all_of_them[0]

    def dispatch(
        self, x: Any, ids: Any, weights: Any, scales: Any, max_tokens: int | None, half: bool = False
    ) -> DispatchedTensors:
        """Sends rows on PyTorch's current stream, and receives, unless half of it is to be done."""
        step = self._largest if max_tokens is None else self.step(max_tokens)
        sent = self._send(step.number, x, ids, weights, scales, half)
        if sent is None:
            return self._dispatch_slowly(step, x, ids, weights, scales, half)
        n, number = sent
        return DispatchedTensors(step, number, n, (x, ids, weights, scales))

    def _dispatch_slowly(self, step: Step, x: Any, ids: Any, weights: Any, scales: Any, half: bool) -> DispatchedTensors:
        """The same after a look at each tensor."""
        device, torch = self.device, self.device.torch
        tensor = device.taken("x", x)
        n = tensor.shape[0] if tensor.dim() else 0
        if n > step.tokens:
            raise InvalidArgument("x.shape", tuple(tensor.shape), f"at most {step.tokens} rows, max_tokens")
        device.checked("x", tensor, self._sent, (n, self._sent_elements))
        given = [
            tensor,
            device.checked("ids", ids, (self._ids,), (n, self.topk)),
            device.checked("weights", weights, (torch.float32,), (n, self.topk)),
        ]
        if (scales is not None) != (self._sent_scales_row > 0):
            nothing = "dispatch works them out" if self._quantises else f"rows are {self.dtype}"
            allowed = f"a tensor of {self._sent_scales[0]}" if self._sent_scales_row else f"nothing: {nothing}"
            raise InvalidArgument("scales", "none" if scales is None else type(scales).__name__, allowed)
        if scales is not None:
            shape = (1, 1) if self._of_tensor else (n, self._scales)
            given.append(device.checked("scales", scales, self._sent_scales, shape))
        x_at, ids_at, weights_at, *scales_at = (one.data_ptr() for one in given)
        places = (x_at, scales_at[0] if scales_at else 0, ids_at, weights_at)
        number = self._core.dispatch(step.number, places, n, device.stream(device.number), half)
        return DispatchedTensors(step, number, n, tuple(given))

    def receive(self, d: DispatchedTensors) -> DispatchedTensors:
        """The second half of a dispatch."""
        self._core.dispatch_receive(d._step.number, d._number, self.device.stream(self.device.number))
        return d

    def combine(self, d: Any, y: Any, out: Any) -> Tensor:
        """Brings `y` back on PyTorch's current stream."""
        step, n = self._own_dispatch(d), d._n
        if out is None:
            out = self._empty(n)
        if self._bring_back(step.number, (n, d._number), y, out, step.places):
            return out  # type: ignore[no-any-return]
        rows = self._outputs(step, y)
        out = self.device.checked("out", out, (self.combined,), (n, self.hidden))
        if overlap(rows, out):
            raise InvalidArgument("out", "memory of y", "memory of its own")
        # An empty tensor has no memory, and nothing is written.
        target = out.data_ptr() or rows.data_ptr()
        self._core.combine(step.number, d._number, rows.data_ptr(), target, self.device.stream(self.device.number))
        return out  # type: ignore[no-any-return]

    def combine_send(self, d: Any, y: Any) -> tuple[DispatchedTensors, Tensor]:
        """The first half of a combine, which reads `y`."""
        step = self._own_dispatch(d)
        rows = self._outputs(step, y)
        self._core.combine_send(step.number, d._number, rows.data_ptr(), self.device.stream(self.device.number))
        return d, rows

    def combine_receive(self, going_on: tuple[DispatchedTensors, Tensor], out: Any) -> Tensor:
        """The second half."""
        d, rows = going_on
        out = self._empty(d._n) if out is None else self.device.checked("out", out, (self.combined,), (d._n, self.hidden))
        if overlap(rows, out):
            raise InvalidArgument("out", "memory of y", "memory of its own")
        target = out.data_ptr() or rows.data_ptr()
        self._core.combine_receive(d._step.number, d._number, target, self.device.stream(self.device.number))
        return out  # type: ignore[no-any-return]

    def _own_dispatch(self, d: Any) -> Step:
        """The capacity of a dispatch of this operation."""
        if not isinstance(d, DispatchedTensors) or d._step.moe is not self:
            raise InvalidArgument("d", type(d).__name__, "what dispatch of this operation returned")
        return d._step

    def _outputs(self, step: Step, y: Any) -> Tensor:
        """What the experts of this rank have made, if it is as it has to be."""
        return self.device.checked("y", y, (self.combined,), (step.places, self.hidden))

    def _empty(self, n: int) -> Tensor:
        """Room for combined rows."""
        return self.device.torch.empty((n, self.hidden), dtype=self.combined, device=self.device.device)
