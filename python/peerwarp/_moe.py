"""MoE dispatch and combine on the ranks of a world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from peerwarp import _arrays, _core
from peerwarp._device import Device, DeviceMoe, DispatchedTensors
from peerwarp._world import World, runs_on, whole
from peerwarp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

LAYOUTS = ("rank_major", "expert_major")
#: What rows may come as, by the type that they are dispatched in.
ROWS = {
    "bf16": ("bfloat16", "uint16", "float32"),
    "fp16": ("float16",),
    "fp8": ("uint8", "float8_e4m3fn"),
}


@dataclass(frozen=True, eq=False)
class Dispatched:
    """What dispatch brought, one entry for each rank in every list. `R` ranks, `T` the most tokens of a rank, `K` topk.

    Rank-major: `places` is `R * T`, and row `source * T + token` is what came of that token. An expert's output for a row is
    weighted with the row's weight for it; a rank sums over its own experts and rounds once.
    Expert-major: `places` is the number of rows that came, sorted by expert, source, token and k. Combine weights and sums.

    A list that there is nothing of, for this layout or type, is empty.

    Attributes:
        rows: `(places, hidden)`, of the type of `x`; zeros where no row came.
        scales: fp8 only: float32 `(places, hidden / 128 rounded up)`.
        ids: rank-major only: int32 `(places, K)`, ids of this rank's experts among all of them, `nobody` in entries that are not
            its own.
        weights: rank-major only: float32 `(places, K)`, 0 in entries that are not this rank's own.
        gather: rank-major only: uint32 `(n,)`, the numbers of the rows of this rank's experts, expert by expert.
        expert_start: uint32 `(experts of the rank + 1,)`: the rows of the e-th own expert are `expert_rows[e]` from here on, in
            `gather` if rank-major and in `rows` if expert-major.
        expert_rows: uint32 `(experts of the rank,)`.
        first_expert: the id of the rank's first expert; its experts are contiguous.
        tokens_from: uint32 `(R,)`: how many tokens each source had.
        capacity: `T`.
    """

    rows: list[np.ndarray]
    scales: list[np.ndarray]
    ids: list[np.ndarray]
    weights: list[np.ndarray]
    gather: list[np.ndarray]
    expert_start: list[np.ndarray]
    expert_rows: list[np.ndarray]
    first_expert: list[int]
    tokens_from: list[np.ndarray]
    layout: str
    capacity: int
    _round: _core.Round


class MoeAllToAll:
    """Dispatch, which brings every token to the ranks that own its experts, and combine, which brings their outputs back.

    Experts are spread over ranks in order; the first `experts % ranks` ranks own one more than the others.

    Args:
        world: the ranks.
        hidden: elements of a row, a multiple of 8.
        experts: experts of all ranks together.
        topk: expert ids of a token.
        max_tokens: the most tokens of a rank.
        capacities: smaller numbers of tokens that there are kernels and memory for besides `max_tokens`, in ascending order:
            `dispatch` takes the smallest that suffices for its own `max_tokens`.
        dtype: what rows travel as: `"bf16"`, `"fp16"` or `"fp8"` (e4m3, with a scale for every 128 elements). Rows are combined in
            the same type, fp8 ones in bf16.
        layout: `"rank_major"` or `"expert_major"`, how rows stand after dispatch: see `Dispatched`.
        nobody: what stands in `ids` of entries that are not the rank's own: negative, or `experts` and more.
        sms: the most blocks of a launch, each of which takes an SM of a GPU; as many as are fastest if none.
    """

    def __init__(
        self,
        world: World,
        *,
        hidden: int,
        experts: int,
        topk: int,
        max_tokens: int,
        dtype: str = "bf16",
        layout: str = "rank_major",
        capacities: Sequence[int] | None = None,
        nobody: int = -1,
        sms: int | None = None,
    ) -> None:
        on = runs_on(world)
        if dtype not in ROWS:
            raise InvalidArgument("dtype", dtype, ", ".join(ROWS))
        if layout not in LAYOUTS:
            raise InvalidArgument("layout", layout, ", ".join(LAYOUTS))
        sizes = {"hidden": hidden, "experts": experts, "topk": topk, "max_tokens": max_tokens}
        hidden, experts, topk, tokens = (whole(name, size, 1, 2**31) for name, size in sizes.items())
        ladder = _ascending(capacities or (), tokens)
        nobody = whole("nobody", nobody, -(2**31), 2**31 - 1)
        if 0 <= nobody < experts:
            raise InvalidArgument("nobody", nobody, f"negative, or {experts} or more: no expert")
        sms = None if sms is None else whole("sms", sms, 1, 2**31)
        self._world = world
        #: The last dispatch of `torch.ops.peerwarp.moe_dispatch`.
        self._last: DispatchedTensors | None = None
        self._device: DeviceMoe | None = None
        if isinstance(on, Device):
            self._device = DeviceMoe(on, (hidden, experts, topk), ladder, (dtype, layout), nobody, sms)
            return
        self._cores = {one: _core.MoeAllToAll(on, (hidden, experts, topk, one), dtype, layout) for one in ladder}
        self._core = self._cores[tokens]
        self._hidden, self._experts, self._topk = hidden, experts, topk
        self._dtype, self._layout, self._nobody = dtype, layout, nobody
        self._first_expert = self._core.first_experts()

    @property
    def capacities(self) -> tuple[int, ...]:
        """The most tokens of a rank that kernels and memory are for, in ascending order."""
        return tuple(self._cores if self._device is None else self._device.capacities)

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """Bytes that each of the `capacities` has on this rank's GPU; none on simulated ranks."""
        return () if self._device is None else tuple(self._device.memory_bytes())

    @property
    def kernels(self) -> tuple[tuple[str, str], ...]:
        """For each of the `capacities` names of its kernels, and whether they are `tuned` for the GPU or the `default`; none on
        simulated ranks."""
        return () if self._device is None else tuple(self._device.kernels())

    def dispatch(self, x: Any, ids: Any, weights: Any, *, scales: Any = None, max_tokens: int | None = None) -> Any:
        """Brings every token to the ranks that own its experts: a `Dispatched`, or in a world of GPUs a `DispatchedTensors`.

        In a simulated world each argument is a list with one array for each rank. In a world of GPUs it is a tensor on this rank's
        GPU, launched on PyTorch's current stream: `x` is `torch.bfloat16`, `torch.float16` or `torch.float8_e4m3fn`. They must not
        change until combine has ended. Ids that are no expert's mask their entry.

        Args:
            x: `(n, hidden)` with `n` from 0 to `max_tokens`, which may differ by rank. bf16: `bfloat16` of `ml_dtypes`, `uint16`
                (the bits) or `float32`, which is rounded to bfloat16, to the nearest and to even. fp16: `float16`. fp8: `uint8`
                (the bits) or `float8_e4m3fn` of `ml_dtypes`.
            ids: int32 `(n, topk)`: ids of experts from 0 on; -1 masks an entry.
            weights: float32 `(n, topk)`.
            scales: fp8 only: float32 `(n, hidden / 128 rounded up)`.
            max_tokens: a number that is the same on all ranks, and on none less than `n`, for which the smallest of `capacities` is
                taken; the largest if none.
        """
        if self._device is not None:
            return self._device.dispatch(x, ids, weights, scales, max_tokens)
        tokens = self._capacity(max_tokens)
        ranks = self._world.ranks
        rows = _arrays.each_rank("x", x, ranks)
        entries = [_arrays.each_rank("ids", ids, ranks), _arrays.each_rank("weights", weights, ranks)]
        scaled = self._scales(scales)
        sent = []
        for rank, row in enumerate(rows):
            _arrays.checked(f"x[{rank}]", row, ROWS[self._dtype], (None, self._hidden))
            if row.dtype != rows[0].dtype:
                raise InvalidArgument(f"x[{rank}].dtype", row.dtype, f"{rows[0].dtype}, as on rank 0")
            if len(row) > tokens:
                raise InvalidArgument(f"x[{rank}].shape", row.shape, f"at most {tokens} rows, max_tokens")
            shape = (len(row), self._topk)
            _arrays.checked(f"ids[{rank}]", entries[0][rank], ("int32",), shape)
            _arrays.checked(f"weights[{rank}]", entries[1][rank], ("float32",), shape)
            self._check_ids(rank, entries[0][rank])
            scale = self._scale_of(rank, len(row), scaled)
            sent.append((self._to_wire(row).tobytes(), entries[0][rank].tobytes(), entries[1][rank].tobytes(), scale))
        round_, found = self._cores[tokens].dispatch(sent)
        return self._dispatched(round_, found, rows[0].dtype, tokens)

    def combine(self, d: Dispatched | DispatchedTensors, y: Any, *, out: Any = None) -> Any:
        """Brings the experts' outputs back, summed, to the ranks that have the tokens.

        In a world of GPUs `y` and `out` are tensors, and `d` is the last dispatch, which can be combined once.

        Args:
            d: what `dispatch` of this operation returned.
            y: `(places, hidden)` for each rank, in the order of `d.rows`; rows where nothing came are not read. Rank-major: this
                rank's experts' outputs of a row, weighted with `d.weights` and summed. Expert-major: each row's output, not
                weighted. bf16 and fp8: `bfloat16`, `uint16` or `float32`, which is rounded; fp16: `float16`.
            out: arrays that results go to, if given.

        Returns `(n, hidden)` for each rank, of the type of `y`; float32 has the values of the bfloat16 that travelled.
        """
        if self._device is not None:
            return self._device.combine(d, y, out)
        if not isinstance(d, Dispatched):
            raise InvalidArgument("d", type(d).__name__, "what dispatch returned")
        types = ROWS["fp16" if self._dtype == "fp16" else "bf16"]
        ranks = self._world.ranks
        rows = _arrays.each_rank("y", y, ranks)
        for rank, row in enumerate(rows):
            _arrays.checked(f"y[{rank}]", row, types, (len(d.rows[rank]), self._hidden))
            if row.dtype != rows[0].dtype:
                raise InvalidArgument(f"y[{rank}].dtype", row.dtype, f"{rows[0].dtype}, as on rank 0")
        into = _arrays.outputs("out", out, self._results_like(d, rows[0].dtype)) if out is not None else None
        raw = self._cores.get(d.capacity, self._core).combine(d._round, [self._to_wire(row).tobytes() for row in rows])
        return _arrays.delivered([self._from_wire(one, rows[0].dtype) for one in raw], into)

    def _capacity(self, tokens: int | None) -> int:
        """The smallest capacity with room for so many tokens of a rank, or the largest."""
        known = list(self._cores)
        if tokens is None:
            return known[-1]
        if tokens > known[-1]:
            raise InvalidArgument("max_tokens", tokens, f"at most {known[-1]}, the largest capacity")
        return next(one for one in known if one >= tokens)

    def _results_like(self, d: Dispatched, dtype: np.dtype) -> list[np.ndarray]:
        """Arrays of the results' shapes and type, without memory."""
        import numpy as np

        return [np.broadcast_to(np.zeros((), dtype), (int(n), self._hidden)) for n in d.tokens_from[0]]

    def _to_wire(self, rows: np.ndarray) -> np.ndarray:
        """Rows as they travel."""
        return _arrays.to_bf16(rows) if rows.dtype.name == "float32" else rows

    def _from_wire(self, raw: bytes, dtype: np.dtype) -> np.ndarray:
        """Rows that travelled, in the type that the caller has."""
        import numpy as np

        if dtype.name == "float32":
            return _arrays.from_bf16(np.frombuffer(raw, np.uint16)).reshape(-1, self._hidden)
        return _arrays.from_bytes(raw, dtype, (-1, self._hidden))

    def _check_ids(self, rank: int, ids: np.ndarray) -> None:
        """Whether ids are those of experts, or -1."""
        wrong = (ids < -1) | (ids >= self._experts)
        if wrong.any():
            token, k = (int(at[0]) for at in wrong.nonzero())
            allowed = f"an expert, 0 to {self._experts - 1}, or -1 for none"
            raise InvalidArgument(f"ids[{rank}][{token}, {k}]", ids[token, k], allowed)

    def _scales(self, scales: Sequence[Any] | None) -> list[np.ndarray] | None:
        """The scales of all ranks, where there are some to be."""
        if (self._dtype == "fp8") != (scales is not None):
            allowed = "a list of float32 arrays" if self._dtype == "fp8" else f"nothing: rows are {self._dtype}"
            raise InvalidArgument("scales", "none" if scales is None else type(scales).__name__, allowed)
        return None if scales is None else _arrays.each_rank("scales", scales, self._world.ranks)

    def _scale_of(self, rank: int, n: int, scales: list[np.ndarray] | None) -> bytes | None:
        if scales is None:
            return None
        shape = (n, self._core.scales())
        return _arrays.checked(f"scales[{rank}]", scales[rank], ("float32",), shape).tobytes()

    def _dispatched(self, round_: _core.Round, found: list[dict[str, bytes]], dtype: np.dtype, capacity: int) -> Dispatched:
        """Arrays of the bytes that each rank has."""
        import numpy as np

        def each(name: str, of: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
            return [_arrays.from_bytes(one[name], np.dtype(of), shape) for one in found]

        firsts = self._first_expert
        own = [end - start for start, end in pairwise(firsts)]
        scales = each("row_scale", np.float32, (-1, self._core.scales())) if self._dtype == "fp8" else []
        ids: list[np.ndarray] = []
        weights: list[np.ndarray] = []
        gather: list[np.ndarray] = []
        if self._layout == "rank_major":
            ids = each("entry_expert", np.int32, (-1, self._topk))
            sent = each("weight_from", np.float32, (-1, self._topk))
            weights = [np.where(e < 0, np.float32(0), w) for e, w in zip(ids, sent, strict=True)]
            ids = [np.where(e < 0, np.int32(self._nobody), e) for e in ids]
            gather = each("gather", np.uint32, (-1,))
        starts = each("expert_start", np.uint32, (-1,))
        counts = each("expert_rows", np.uint32, (-1,))
        return Dispatched(
            rows=[self._from_wire(one["rows"], dtype) for one in found],
            scales=scales,
            ids=ids,
            weights=weights,
            gather=gather,
            expert_start=[start[: n + 1] for start, n in zip(starts, own, strict=True)],
            expert_rows=[count[:n] for count, n in zip(counts, own, strict=True)],
            first_expert=firsts[:-1],
            tokens_from=each("n_from", np.uint32, (-1,)),
            layout=self._layout,
            capacity=capacity,
            _round=round_,
        )


def _ascending(capacities: Sequence[int], most: int) -> list[int]:
    """Capacities in ascending order, the largest last."""
    ladder = [whole(f"capacities[{at}]", one, 1, most) for at, one in enumerate(capacities)]
    for at, (few, many) in enumerate(pairwise(ladder), 1):
        if many <= few:
            raise InvalidArgument(f"capacities[{at}]", many, f"more than {few}, the one before")
    return ladder if ladder and ladder[-1] == most else [*ladder, most]
