"""Collectives on the ranks of a world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from peerwarp import _arrays, _core
from peerwarp._device import OPS, Device, DeviceCollectives, row_capacity
from peerwarp._world import World, runs_on, whole
from peerwarp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np


class Collectives:
    """The collectives of a world.

    In a world of GPUs each takes a tensor of PyTorch, or of a library that speaks DLPack, that is contiguous and on this rank's
    GPU, and returns a tensor: `out`, or a new one. It is launched on PyTorch's current stream, and no rank is waited for. One
    operation takes all lengths up to its capacity. The first call of each collective, type and capacity allocates, on all ranks;
    later ones may be captured in a CUDA graph, which keeps their length. Calls are in the order of one stream. Types are
    `torch.float32`, `torch.float16`, `torch.bfloat16`, `torch.int32`, and `torch.uint8` where nothing is reduced.

    In a simulated world each takes a list with one array for each rank and returns such a list. Arrays are contiguous, of any
    shape, the same on all ranks, and of one type: `float32`, `float16`, `uint16` (the bits of a bfloat16), `bfloat16` of
    `ml_dtypes`, `int32`, or `uint8` where nothing is reduced. Results have the type of the inputs. With `out`, a list of arrays
    of the results' shape and type, results are written there and those arrays are returned. In neither world may `out` have
    memory of `x`.

    Sums of floats are added in float32, in the order of ranks, and rounded once: all ranks get the same bits, whatever the
    schedule. Those of integers wrap.

    Args:
        world: where they run.
        capacities: in ascending order, the most elements that a rank's array, or a rank's part of it, may have; the smallest with
            room takes a call. By default powers of two from 1024. On several nodes each length has an operation of its own, and
            simulated worlds need no capacities.
    """

    def __init__(self, world: World, *, capacities: Sequence[int] | None = None) -> None:
        self._world = world
        on = runs_on(world)
        ladder = [whole(f"capacities[{at}]", one, 1, 1 << 28) for at, one in enumerate(capacities or ())]
        if capacities is not None and (not ladder or ladder != sorted(set(ladder))):
            raise InvalidArgument("capacities", list(capacities), "one or more numbers of elements, ascending")
        self._device = DeviceCollectives(on, ladder) if isinstance(on, Device) else None
        self._core = None if isinstance(on, Device) else _core.Collectives(on)

    @property
    def world(self) -> World:
        """The world that they run in."""
        return self._world

    @property
    def memory_bytes(self) -> int:
        """Bytes of this rank's GPU that operations have; none on simulated ranks."""
        return 0 if self._device is None else self._device.memory_bytes()

    def free(self) -> None:
        """Frees all operations. All ranks do so, at the same place among their calls; later calls make them anew.

        Launches end first. Graphs that captured a call must not be replayed after it.
        """
        core = self._core if self._device is None else self._device
        assert core is not None
        core.free()

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None) -> Any:
        """The reduction of all ranks' arrays, on every rank.

        `op` is `"sum"`, `"avg"`, `"max"`, `"min"`, `"max-nan"` or `"min-nan"`; of integers `"sum"`, `"max"` or `"min"`. A NaN
        loses against a number in `"max"` and `"min"`, as in NCCL: the result is NaN where all ranks have NaN. It wins in
        `"max-nan"` and `"min-nan"`, as in `torch.maximum`.

        Shapes, here of a rank's array: `x` any, results as `x`.
        """
        if self._device is not None:
            return self._device.run("all_reduce", x, _same, out, op, 0)
        arrays, dtype = self._inputs(x, reduced=True)
        return self._run("all_reduce", arrays, dtype, arrays[0].shape, out, op=_known(op))

    def reduce_scatter(self, x: Any, op: str = "sum", *, sizes: Any = None, max_size: int | None = None, out: Any = None) -> Any:
        """This rank's part of the reduction of all ranks' arrays. `op` as in `all_reduce`.

        With `sizes` parts have lengths of their own, as in `all_gather`.

        Shapes: `x` is `(ranks * n, ...)`, results are `(n, ...)`. With `sizes`, `x` is `(sum(sizes), ...)`, and the result of rank
        `r` is `(sizes[r], ...)`.
        """
        if sizes is not None:
            return self._uneven("reduce_scatter", x, _known(op), (sizes, max_size), out)
        if self._device is not None:
            return self._device.run("reduce_scatter", x, lambda one: self._part(one.shape), out, op, 0)
        arrays, dtype = self._inputs(x, reduced=True)
        shape = self._part(arrays[0].shape)
        return self._run("reduce_scatter", arrays, dtype, shape, out, op=_known(op))

    def all_gather(self, x: Any, *, sizes: Any = None, max_size: int | None = None, out: Any = None) -> Any:
        """All ranks' arrays in the order of ranks, on every rank.

        With `sizes` arrays have lengths of their own along the first axis: a list of them, one for each rank, the same on all
        ranks. Results follow one another without a gap. On GPUs `sizes` may be a `torch.int32` tensor, which a captured graph reads
        in each launch: then `max_size` is the most that one of them may be, `out` is given, and `x` and `out` may be longer. Ranks
        pass the same `max_size`.

        Shapes: `x` is `(n, ...)`, results are `(ranks * n, ...)`. With `sizes`, `x` of rank `r` is `(sizes[r], ...)`, and results
        are `(sum(sizes), ...)`.
        """
        if sizes is not None:
            return self._uneven("all_gather", x, "sum", (sizes, max_size), out)
        if self._device is not None:
            return self._device.run("all_gather", x, self._whole, out, "sum", 0)
        arrays, dtype = self._inputs(x)
        return self._run("all_gather", arrays, dtype, self._whole(arrays[0]), out)

    def all_to_all(self, x: Any, *, out: Any = None) -> Any:
        """Each rank's part for this rank, in the order of ranks: part `i` of the result of rank `j` is part `j` of `x[i]`.

        Shapes: `x` is `(ranks * n, ...)`, results as `x`.
        """
        if self._device is not None:
            return self._device.run("all_to_all", x, self._parts, out, "sum", 0)
        arrays, dtype = self._inputs(x)
        self._parts(arrays[0])
        return self._run("all_to_all", arrays, dtype, arrays[0].shape, out)

    def broadcast(self, x: Any, root: int = 0, *, out: Any = None) -> Any:
        """The array of rank `root`, on every rank.

        Shapes: `x` any, of which only `x[root]` is sent; results as `x[root]`.
        """
        ranks = self._world.ranks
        if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < ranks:
            raise InvalidArgument("root", root, f"a rank: 0 to {ranks - 1}")
        if self._device is not None:
            return self._device.run("broadcast", x, _same, out, "sum", root)
        arrays, dtype = self._inputs(x)
        return self._run("broadcast", arrays, dtype, arrays[0].shape, out, root=root)

    def _uneven(self, name: str, x: Any, op: str, sizes_most: tuple[Any, int | None], out: Any) -> Any:
        """A collective whose ranks have lengths of their own."""
        (sizes, most), ranks = sizes_most, self._world.ranks
        if self._device is not None and hasattr(sizes, "data_ptr"):
            if most is None:
                raise InvalidArgument("max_size", "none", "the most rows of a rank, where sizes are on the GPU")
            return self._device.uneven_on_gpu(name, x, op, sizes, whole("max_size", most, 1, 1 << 28), out)
        if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence):
            raise InvalidArgument("sizes", type(sizes).__name__, f"a list of {ranks} lengths, one for each rank")
        if len(sizes) != ranks:
            raise InvalidArgument("sizes", f"{len(sizes)} lengths", f"{ranks}, one for each rank")
        of_all = [whole(f"sizes[{rank}]", size, 0, 1 << 28) for rank, size in enumerate(sizes)]
        if most is not None:
            most = whole("max_size", most, max(of_all), 1 << 28)
        if self._device is not None:
            return self._device.uneven(name, x, op, of_all, most, out)
        return self._uneven_simulated(name, x, op, of_all, out)

    def _uneven_simulated(self, name: str, x: Any, op: str, sizes: list[int], out: Any) -> list[np.ndarray]:
        import numpy as np

        ranks, gathers = self._world.ranks, name == "all_gather"
        arrays = _arrays.each_rank("x", x, ranks)
        first = arrays[0]
        dtype = _arrays.element_name("x[0]", first.dtype, not gathers)
        if first.ndim == 0:
            raise InvalidArgument("x[0].shape", (), "1 axis or more")
        rest = first.shape[1:]
        for rank, array in enumerate(arrays):
            rows = sizes[rank] if gathers else sum(sizes)
            _arrays.checked(f"x[{rank}]", array, (first.dtype.name,), (rows, *rest))
        shapes = [(sum(sizes) if gathers else size, *rest) for size in sizes]
        like = [np.broadcast_to(np.zeros((), first.dtype), shape) for shape in shapes]
        into = _arrays.outputs("out", out, like)
        if into is not None:
            _arrays.apart("out", into, "x", arrays)
        row = math.prod(rest)
        if row * sum(sizes) == 0:
            return _arrays.delivered([np.empty(shape, first.dtype) for shape in shapes], into)
        assert self._core is not None
        given = (row, row_capacity(max(sizes)), sizes)
        raw = self._core.run(name, (op, 0), (dtype, 0), [array.tobytes() for array in arrays], given)
        results = [_arrays.from_bytes(one, first.dtype, shape) for one, shape in zip(raw, shapes, strict=True)]
        return _arrays.delivered(results, into)

    def _inputs(self, x: Sequence[Any], *, reduced: bool = False) -> tuple[list[np.ndarray], str]:
        """Arrays that are alike, and the kernels' name of their type."""
        arrays = _arrays.each_rank("x", x, self._world.ranks)
        first = arrays[0]
        dtype = _arrays.element_name("x[0]", first.dtype, reduced)
        for rank, array in enumerate(arrays):
            _arrays.checked(f"x[{rank}]", array, (first.dtype.name,), first.shape)
        return arrays, dtype

    def _part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a rank's part of an array."""
        ranks = self._world.ranks
        if not shape or shape[0] % ranks:
            raise InvalidArgument(self._shape_of_x(), tuple(shape), f"a first axis that {ranks} ranks divide")
        return (shape[0] // ranks, *shape[1:])

    def _parts(self, one: Any) -> tuple[int, ...]:
        """The shape of an array that has a part for each rank."""
        self._part(one.shape)
        return tuple(one.shape)

    def _whole(self, one: Any) -> tuple[int, ...]:
        """The shape of all ranks' arrays together."""
        if len(one.shape) == 0:
            raise InvalidArgument(self._shape_of_x(), (), "1 axis or more")
        return (one.shape[0] * self._world.ranks, *one.shape[1:])

    def _shape_of_x(self) -> str:
        return "x[0].shape" if self._device is None else "x.shape"

    def _run(
        self,
        name: str,
        arrays: list[np.ndarray],
        dtype: str,
        shape: tuple[int, ...],
        out: Sequence[Any] | None,
        *,
        op: str = "sum",
        root: int = 0,
    ) -> list[np.ndarray]:
        import numpy as np

        like = np.broadcast_to(np.zeros((), arrays[0].dtype), shape)
        into = _arrays.outputs("out", out, [like] * len(arrays))
        if into is not None:
            _arrays.apart("out", into, "x", arrays)
        if arrays[0].size == 0:
            return _arrays.delivered([np.empty(shape, arrays[0].dtype) for _ in arrays], into)
        assert self._core is not None
        raw = self._core.run(name, (op, root), (dtype, arrays[0].size), [array.tobytes() for array in arrays])
        results = [_arrays.from_bytes(one, arrays[0].dtype, shape) for one in raw]
        return _arrays.delivered(results, into)


def _same(one: Any) -> tuple[int, ...]:
    return tuple(one.shape)


def _known(op: str) -> str:
    if op not in OPS:
        raise InvalidArgument("op", op, ", ".join(OPS))
    return op
