"""Collectives on the ranks of a world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from peerwarp import _arrays, _core
from peerwarp._world import World, simulated
from peerwarp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

OPS = ("sum", "max", "min")


class Collectives:
    """The collectives of a world.

    Each takes a list with one array for each rank and returns such a list. Arrays are contiguous, of any shape, the same on all
    ranks, and of one type: `float32`, `float16`, `uint16` (the bits of a bfloat16) or `bfloat16` of `ml_dtypes`. Results have the
    type of the inputs. With `out`, a list of arrays of the results' shape and type, results are written there
    and those arrays are returned.

    Sums are added in float32, in the order of ranks, and rounded once: all ranks get the same bits, whatever the schedule.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._core = _core.Collectives(simulated(world, "Collectives"))

    @property
    def world(self) -> World:
        """The world that they run in."""
        return self._world

    def all_reduce(self, x: Sequence[Any], op: str = "sum", *, out: Sequence[Any] | None = None) -> list[np.ndarray]:
        """The reduction of everybody's array, on every rank. `op` is `"sum"`, `"max"` or `"min"`.

        Shapes: `x[rank]` any, results as `x[rank]`.
        """
        arrays, dtype = self._inputs(x)
        return self._run("all_reduce", arrays, dtype, arrays[0].shape, out, op=_known(op))

    def reduce_scatter(self, x: Sequence[Any], op: str = "sum", *, out: Sequence[Any] | None = None) -> list[np.ndarray]:
        """This rank's part of the reduction of everybody's array. `op` as in `all_reduce`.

        Shapes: `x[rank]` is `(ranks * n, ...)`, results are `(n, ...)`.
        """
        arrays, dtype = self._inputs(x)
        shape = self._part(arrays[0].shape)
        return self._run("reduce_scatter", arrays, dtype, shape, out, op=_known(op))

    def all_gather(self, x: Sequence[Any], *, out: Sequence[Any] | None = None) -> list[np.ndarray]:
        """Everybody's arrays in the order of ranks, on every rank.

        Shapes: `x[rank]` is `(n, ...)`, results are `(ranks * n, ...)`.
        """
        arrays, dtype = self._inputs(x, axes=1)
        first, *rest = arrays[0].shape
        return self._run("all_gather", arrays, dtype, (first * self._world.ranks, *rest), out)

    def all_to_all(self, x: Sequence[Any], *, out: Sequence[Any] | None = None) -> list[np.ndarray]:
        """Everybody's part for this rank, in the order of ranks: part `i` of the result of rank `j` is part `j` of `x[i]`.

        Shapes: `x[rank]` is `(ranks * n, ...)`, results as `x[rank]`.
        """
        arrays, dtype = self._inputs(x)
        self._part(arrays[0].shape)
        return self._run("all_to_all", arrays, dtype, arrays[0].shape, out)

    def broadcast(self, x: Sequence[Any], root: int = 0, *, out: Sequence[Any] | None = None) -> list[np.ndarray]:
        """The array of rank `root`, on every rank.

        Shapes: `x[rank]` any, of which only `x[root]` is sent; results as `x[root]`.
        """
        ranks = self._world.ranks
        if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < ranks:
            raise InvalidArgument("root", root, f"a rank: 0 to {ranks - 1}")
        arrays, dtype = self._inputs(x)
        return self._run("broadcast", arrays, dtype, arrays[0].shape, out, root=root)

    def _inputs(self, x: Sequence[Any], axes: int = 0) -> tuple[list[np.ndarray], str]:
        """Arrays that are alike, and the kernels' name of their type."""
        arrays = _arrays.each_rank("x", x, self._world.ranks)
        first = arrays[0]
        dtype = _arrays.float_name("x[0]", first.dtype)
        for rank, array in enumerate(arrays):
            _arrays.checked(f"x[{rank}]", array, (first.dtype.name,), first.shape)
        if first.ndim < axes:
            raise InvalidArgument("x[0].shape", first.shape, f"{axes} axis or more")
        if first.size == 0:
            raise InvalidArgument("x[0].shape", first.shape, "one element or more")
        return arrays, dtype

    def _part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a rank's part of an array."""
        ranks = self._world.ranks
        if not shape or shape[0] % ranks:
            raise InvalidArgument("x[0].shape", shape, f"a first axis that {ranks} ranks divide")
        return (shape[0] // ranks, *shape[1:])

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
        raw = self._core.run(name, (op, root), (dtype, arrays[0].size), [array.tobytes() for array in arrays])
        results = [_arrays.from_bytes(one, arrays[0].dtype, shape) for one in raw]
        return _arrays.delivered(results, into)


def _known(op: str) -> str:
    if op not in OPS:
        raise InvalidArgument("op", op, ", ".join(OPS))
    return op
