"""MoE dispatch and combine on the ranks of a world."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from peerwarp import _arrays, _core
from peerwarp._device import Device, DeviceMoe, DispatchedTensors
from peerwarp._world import World, flag, runs_on, seconds_of, whole
from peerwarp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

LAYOUTS = ("rank_major", "expert_major", "expert_strided")
#: Rows whose elements are bytes.
BYTES = ("uint8", "float8_e4m3fn", "float8_e5m2")
#: What rows may come as, by the type that they are dispatched in.
ROWS = {
    "bf16": ("bfloat16", "uint16", "float32"),
    "fp16": ("float16",),
    "fp8": BYTES,
    "fp8-ue8m0": BYTES,
    "fp8-token": BYTES,
    "fp8-tensor": BYTES,
    "fp8-fnuz": ("uint8", "float8_e4m3fnuz"),
    "int8": ("int8", "uint8"),
    "mxfp8": BYTES,
    "nvfp4": ("uint8",),
    "mxfp4": ("uint8",),
    "bytes": BYTES,
}
#: What dispatch can quantise rows to.
QUANTISED = ("fp8", "fp8-ue8m0", "fp8-fnuz", "int8", "mxfp8", "nvfp4")
#: How the scales that dispatch yields may stand.
SCALE_LAYOUTS = ("row", "column", "128x4")
#: How scales that are powers of two may be rounded.
ROUNDINGS = ("floor", "up")
#: What rows may travel back as.
RETURNED = ("combined", "fp8", "fp8-token", "nvfp4")
#: What scales may come as: float32, or bytes.
SCALES = {True: ("float32",), False: ("uint8", "float8_e8m0fnu", "float8_e4m3fn")}


@dataclass(frozen=True, eq=False)
class Dispatched:
    """What dispatch brought, one entry for each rank in every list. `R` ranks, `T` the most tokens of a rank, `K` topk.

    Rank-major: `places` is `R * T`, and row `source * T + token` is what came of that token. A rank sums over its own experts and
    rounds once. The experts apply the weights before that, or combine applies them if the operation is `weighted`.
    Expert-major: `places` is the number of rows that came, sorted by expert, source, token and k, with gaps where the first rows of
    experts are multiples of `expert_align`. Combine weights and sums.
    Expert-strided: `places` is the most experts of a rank times `R * T`, and the rows of the e-th own expert are those from
    `e * R * T` on. Combine weights and sums those that have a place.
    With `max_rows`, expert-major `places` is at most that, and expert-strided it is `max_rows` for each expert, which are then
    `max_rows` apart. Rows are placed in their order; what is left of them has no place, is not stored, and contributes nothing.

    A list that there is nothing of, for this layout or type, is empty.

    Attributes:
        rows: `(places, hidden)`, of the type of `x`; zeros where no row came. Of 4 bits `(places, hidden / 2)`.
        scales: `(places, ..)`, of the shape and type of those that `dispatch` takes. With `scale_layout="column"`
            `(places, words)`, whose columns lie one after another, of float32, or of int32 if four scales of a byte are a word;
            with `"128x4"` the bytes of rows rounded up to 128, tile by tile. Expert-strided, an axis of experts is in front.
        ids: rank-major only: int32 `(places, K)`, ids of this rank's experts among all of them, `empty_id` in entries that are not
            its own.
        weights: rank-major only: float32 `(places, K)`, 0 in entries that are not this rank's own.
        gather: rank-major only: int32 `(n,)`, the numbers of the rows of this rank's experts, expert by expert.
        expert_start: int32 `(experts of the rank + 1,)`: the rows of the e-th own expert are `expert_rows[e]` from here on, in
            `gather` if rank-major and in `rows` if not.
        expert_rows: int32 `(experts of the rank,)`.
        overflow: with `max_rows` or expert-strided only: int32 `(1,)`, how many rows had no place. Without `max_rows` there are
            some only where tokens name an expert several times.
        needed: with it: int32 `(1,)`, the `max_rows` with which all would have had a place.
        missing: if the operation counts it: after combine, int32 `(n,)`, how many of each token's entries name experts of ranks
            that are not active. Simulated ranks all are.
        first_expert: the id of the rank's first expert; its experts are contiguous.
        tokens_from: int32 `(R,)`: how many tokens each source had.
        capacity: `T`.
    """

    rows: list[np.ndarray]
    scales: list[np.ndarray]
    ids: list[np.ndarray]
    weights: list[np.ndarray]
    gather: list[np.ndarray]
    expert_start: list[np.ndarray]
    expert_rows: list[np.ndarray]
    overflow: list[np.ndarray]
    needed: list[np.ndarray]
    missing: list[np.ndarray]
    first_expert: list[int]
    tokens_from: list[np.ndarray]
    layout: str
    capacity: int
    _of: MoeAllToAll
    _round: _core.Round
    _stage: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Sending:
    """A dispatch that has sent, of `dispatch_send`: for `dispatch_receive`."""

    _of: MoeAllToAll
    _go_on: Any


@dataclass(frozen=True, eq=False)
class Returning:
    """A combine that has sent, of `combine_send`: for `combine_receive`."""

    _of: MoeAllToAll
    _go_on: Any


class Stages:
    """How far the last dispatch of each capacity is, on simulated ranks as on GPUs."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self._last: dict[int, tuple[int, str] | None] = dict.fromkeys(capacities)
        self._dispatches = 0

    def begin(self, capacity: int, done: str) -> tuple[int, int]:
        """A dispatch: its capacity and its number."""
        self._dispatches += 1
        self._last[capacity] = self._dispatches, done
        return capacity, self._dispatches

    def go_on(self, stage: tuple[int, int], wanted: str, done: str) -> None:
        """Goes on with a dispatch that was `wanted`, and no more: it is `done` then."""
        self.end(stage, wanted)
        self._last[stage[0]] = stage[1], done

    def end(self, stage: tuple[int, int], wanted: str) -> None:
        """Ends a dispatch that was `wanted`, and no more."""
        capacity, number = stage
        if self._last[capacity] != (number, wanted):
            allowed = f"the latest one of its capacity, {wanted} and not used since; the latest of all is {self._dispatches}"
            raise InvalidArgument("d", f"dispatch {number}", allowed)
        self._last[capacity] = None


class Tables:
    """Where experts are, how many replicas each has, and the counts of their entries: as callers keep them."""

    #: What kernels call them.
    NAMES = "place", "replicas", "expert_load"

    def __init__(self, slots: int, replicas: int, kept: tuple[Any, Any, Any]) -> None:
        self.slots, self.replicas, self.kept = slots, replicas, kept

    @staticmethod
    def given(world: World, experts: int, slots: int | None, given: tuple[Any, Any, Any]) -> Tables:
        """Those of a caller, after a look at each: on simulated ranks lists of arrays, else tensors."""
        on, (place, counts, load) = runs_on(world), given
        if (slots is None) != (place is None):
            raise InvalidArgument(
                "placement", "none" if place is None else "a table", "a table with expert_slots, and none without"
            )

        def kept(name: str, of: Any, shape: tuple[int | None, ...]) -> Any:
            if of is None:
                return None
            if isinstance(on, Device):
                there = tuple(on.taken(name, of).shape)
                rank_of = len(there) == len(shape)
                wanted = tuple(there[at] if rank_of and one is None else one or 1 for at, one in enumerate(shape))
                return on.checked(name, of, (on.torch.int32,), wanted)
            each = _arrays.each_rank(name, of, world.ranks)
            return [_arrays.checked(f"{name}[{rank}]", one, ("int32",), shape) for rank, one in enumerate(each)]

        found = kept("placement", place, (experts, None))
        rooms = {one.shape[1] for one in ([found] if isinstance(on, Device) else found or ()) if one is not None}
        if len(rooms) > 1:
            raise InvalidArgument("placement", f"rooms of {sorted(rooms)} replicas", "the same on all ranks")
        replicas = whole("placement.shape[1]", rooms.pop(), 1, 64) if rooms else 1
        if (counts is None) != (replicas == 1):
            what = "none" if counts is None else "counts"
            raise InvalidArgument(
                "replica_counts", what, "int32 (experts,) where placement has room for several replicas, else none"
            )
        tables = found, kept("replica_counts", counts, (experts,)), kept("expert_load", load, (experts,))
        return Tables(0 if slots is None else whole("expert_slots", slots, 1, 65535), replicas, tables)

    def of_rank(self, rank: int) -> list[tuple[str, bytes]]:
        """What a simulated rank has, by the names of kernels' buffers. Its counts of entries begin with what the caller's are."""
        return [(name, one[rank].tobytes()) for name, one in zip(self.NAMES, self.kept, strict=True) if one is not None]

    def count(self, found: list[dict[str, bytes]]) -> None:
        """Counts of entries, as simulated ranks have them after a dispatch."""
        for load, one in zip(self.kept[2] or (), found, strict=False):
            load[:] = _arrays.from_bytes(one["expert_load"], load.dtype, load.shape)


class MoeAllToAll:
    """Dispatch, which brings every token to the ranks that own its experts, and combine, which brings their outputs back.

    Experts are spread over ranks in order; the first `experts % ranks` ranks own one more than the others.

    Args:
        world: the ranks.
        hidden: elements of a row, a multiple of 8; of 64 if nvfp4, and of 128 if mxfp8 or mxfp4.
        experts: experts of all ranks together.
        topk: expert ids of a token.
        max_tokens: the most tokens of a rank.
        capacities: smaller numbers of tokens that there are kernels and memory for besides `max_tokens`, in ascending order:
            `dispatch` takes the smallest that suffices for its own `max_tokens`.
        dtype: what rows travel as: `"bf16"`, `"fp16"`, `"fp8"` (e4m3, with a float32 scale for every 128 elements), `"fp8-ue8m0"`
            (e4m3, with a scale of a byte for every 128 elements), `"fp8-token"` (e4m3 or e5m2, a float32 scale for a row),
            `"fp8-tensor"` (the same without scales), `"fp8-fnuz"` (e4m3fnuz, with scales as of `"fp8"`), `"int8"` (a float32 scale
            for a row), `"mxfp8"` (a scale of a byte for every 32 elements), `"nvfp4"` or `"mxfp4"` (two elements a byte, a scale of
            a byte for every 16, or 32, elements), or `"bytes"`: any bytes, `row_bytes` of a row and `scale_bytes` of its scales,
            which mean something to the caller.
        row_bytes: `"bytes"` only: bytes of a row, a multiple of 4.
        scale_bytes: `"bytes"` only: bytes of a row's scales, a multiple of 4; none travel if 0.
        combined: what experts' outputs and combined rows are: `"bf16"` or `"fp16"`. That is `dtype` where it is one of these, and
            bf16 for all others unless told.
        quantise: `"fp8"`, `"fp8-ue8m0"`, `"fp8-fnuz"`, `"int8"`, `"mxfp8"` and `"nvfp4"` only: whether `x` is of the type
            `combined`, and dispatch quantises its rows on their way out, with the scales that `d.scales` has; else they are given
            quantised, with their scales.
        scale_rounding: `"fp8-ue8m0"` and `"mxfp8"` with `quantise` only: `"floor"`, as OCP has it, or `"up"`, by which no
            element is too large.
        scale_layout: how `d.scales` stand: `"row"`; `"column"`, as DeepGEMM takes them; `"128x4"`, of mxfp8, nvfp4 and mxfp4, as
            block-scaled tensor cores take them.
        combine_dtype: what rows travel back as: `"combined"`, the type `combined`; `"fp8"`, with a float32 scale for every 128
            elements of a row; `"fp8-token"`, with one for each row; or `"nvfp4"`, with an e4m3 scale for every 16
            elements, too. Ranks quantise the rows that they send, and sum in
            float32: `y` and the combined rows stay of the type `combined`.
        layout: `"rank_major"`, `"expert_major"` or `"expert_strided"`, how rows stand after dispatch: see `Dispatched`.
        weighted: rank-major only: whether `combine` applies the weights, to a rank's row the sum of the token's weights there. If
            not, they are the experts' business: `combine` adds rows as they are. Rows by expert are always weighted.
        empty_id: the id of no expert, which `ids` has for entries that are not the rank's own: negative, or `experts` or more.
            Its former name is accepted, with a `DeprecationWarning`.
        sms: the most blocks of a launch, each of which takes an SM of a GPU; as many as are fastest if none.
        expert_align: expert-major only: 1, 8, 16 or 128, which the first row of each expert is a multiple of.
        max_rows: expert-major only: rows of a rank that there are places for, a multiple of `expert_align`; expert-strided only:
            the same for each expert. As many as there can be if none, in expert-major rows `R * T * K`: at 4096 tokens of eight
            ranks that is gigabytes. No rank waits longer, and nothing is written elsewhere, if more rows come: see
            `Dispatched.overflow`.
        split: whether sending and receiving are launches of their own, with work of other kinds in between: `dispatch_send`,
            `dispatch_receive`, `combine_send`, `combine_receive`. `dispatch` and `combine` do both then, one after the other.
        missing: whether combine counts, for each token, the entries whose experts are on ranks that are not active: see
            `Dispatched.missing` and `World.go_on`. Experts that `placement` places in no slot count too.
        expert_slots: slots for experts that each rank has, where `placement` says in which ones experts are. Ids that `dispatch`
            takes are experts' all the same; what it returns goes by slots: `Dispatched.ids`, `expert_rows`, `first_expert`.
        placement: with `expert_slots`: int32 `(experts, replicas)`, the slots of each expert, `rank * expert_slots + slot`. What is
            no slot, such as -1, is no place: such entries go nowhere. A list with one array for each rank, or in a world of GPUs
            this rank's tensor. Dispatch reads it each time: write to it to change it, at any time but while dispatch sends.
        replica_counts: where `placement` has room for several replicas: int32 `(experts,)`, how many each expert has. They take
            turns from token to token.
        expert_load: int32 `(experts,)`, if given: counts to which dispatch adds the entries of each expert of this rank's tokens.
        ids_dtype: what `ids` are: `"int32"`, or `"int64"` as PyTorch's `topk` yields them.
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
        row_bytes: int | None = None,
        scale_bytes: int | None = None,
        combined: str | None = None,
        quantise: bool = False,
        scale_rounding: str = "floor",
        scale_layout: str = "row",
        combine_dtype: str = "combined",
        layout: str = "rank_major",
        weighted: bool = False,
        capacities: Sequence[int] | None = None,
        empty_id: int = -1,
        sms: int | None = None,
        expert_align: int = 1,
        max_rows: int | None = None,
        split: bool = False,
        missing: bool = False,
        expert_slots: int | None = None,
        placement: Any = None,
        replica_counts: Any = None,
        expert_load: Any = None,
        ids_dtype: str = "int32",
        **renamed: Any,
    ) -> None:
        on, empty_id = runs_on(world), _empty_id(empty_id, renamed)
        quantise, weighted = flag("quantise", quantise), flag("weighted", weighted)
        split, missing = flag("split", split), flag("missing", missing)
        if dtype not in ROWS:
            raise InvalidArgument("dtype", dtype, ", ".join(ROWS))
        if quantise and dtype not in QUANTISED:
            raise InvalidArgument(
                "quantise", quantise, f"False for {dtype}: what dispatch quantises to is {' or '.join(QUANTISED)}"
            )
        if scale_layout not in SCALE_LAYOUTS:
            raise InvalidArgument("scale_layout", scale_layout, ", ".join(SCALE_LAYOUTS))
        if scale_rounding not in ROUNDINGS:
            raise InvalidArgument("scale_rounding", scale_rounding, ", ".join(ROUNDINGS))
        if combine_dtype not in RETURNED:
            raise InvalidArgument("combine_dtype", combine_dtype, ", ".join(RETURNED))
        of_scales = scale_layout, scale_rounding
        rows = _rows(dtype, row_bytes, scale_bytes), combined, quantise, weighted, combine_dtype, of_scales
        if layout not in LAYOUTS:
            raise InvalidArgument("layout", layout, ", ".join(LAYOUTS))
        if weighted and layout != "rank_major":
            raise InvalidArgument("weighted", weighted, f"False for {layout}: combine weights its rows in any case")
        sizes = {"hidden": hidden, "experts": experts, "topk": topk, "max_tokens": max_tokens}
        hidden, experts, topk, tokens = (whole(name, size, 1, 2**31) for name, size in sizes.items())
        ladder = _ascending(capacities or (), tokens)
        empty_id = whole("empty_id", empty_id, -(2**31), 2**31 - 1)
        tables = Tables.given(world, experts, expert_slots, (placement, replica_counts, expert_load))
        numbered = tables.slots * world.ranks or experts
        if 0 <= empty_id < numbered:
            raise InvalidArgument("empty_id", empty_id, f"negative, or {numbered} or more: no expert")
        if ids_dtype not in ("int32", "int64"):
            raise InvalidArgument("ids_dtype", ids_dtype, "int32 or int64")
        placing = tables.slots, tables.replicas, expert_load is not None, ids_dtype == "int64"
        sms = None if sms is None else whole("sms", sms, 1, 2**31)
        align = whole("expert_align", expert_align, 1, 128)
        room = 0 if max_rows is None else whole("max_rows", max_rows, 1, 2**31 - 1)
        if room and layout == "rank_major":
            raise InvalidArgument("max_rows", room, "none for rank_major, which has room for every token")
        self._world, self._split, self._counts_missing = world, split, missing
        #: The last dispatch of `torch.ops.peerwarp.moe_dispatch`.
        self._last: DispatchedTensors | None = None
        self._device: DeviceMoe | None = None
        if isinstance(on, Device):
            limits = empty_id, sms, (split, missing, placing)
            self._device = DeviceMoe(on, (hidden, experts, topk), ladder, (rows, (layout, align, room)), limits)
            if any(one is not None for one in tables.kept):
                self._device.set_tables(tables.kept)
            return
        given = rows, (layout, align, room), (split, missing, placing)
        self._tables, self._ids = tables, ids_dtype
        self._cores = {one: _core.MoeAllToAll(on, (hidden, experts, topk, one), *given) for one in ladder}
        self._core = self._cores[tokens]
        row_bytes, scale_bytes, floats = self._core.row_sizes()
        #: Elements of a row as it travels, and of its scales, and what these may come as.
        self._row = hidden if dtype in ("bf16", "fp16") else row_bytes
        self._scales_row, self._scale_types = scale_bytes // 4 if floats else scale_bytes, SCALES[floats]
        self._quantises, self._scale_layout = quantise, scale_layout
        #: Whether one scale of all rows is given.
        self._of_tensor = quantise and dtype == "nvfp4"
        self._hidden, self._experts, self._topk = hidden, experts, topk
        self._dtype, self._layout, self._empty_id = dtype, layout, empty_id
        #: What experts' outputs may come as.
        self._combined_types = ROWS["fp16" if "fp16" in rows else "bf16"]
        self._first_expert = self._core.first_experts()
        self._stages = Stages(ladder)

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
        """For each of the `capacities` names of its kernels, and whether they are `tuned` for the GPU, `earlier` (measured for an
        earlier revision) or the `default`; none on simulated ranks."""
        return () if self._device is None else tuple(self._device.kernels())

    def dispatch(self, x: Any, ids: Any, weights: Any, *, scales: Any = None, max_tokens: int | None = None) -> Any:
        """Brings every token to the ranks that own its experts: a `Dispatched`, or in a world of GPUs a `DispatchedTensors`.

        In a simulated world each argument is a list with one array for each rank. In a world of GPUs it is a tensor on this rank's
        GPU, launched on PyTorch's current stream: `x` is `torch.bfloat16`, `torch.float16`, or of a type of one byte. They must not
        change until combine has ended. Ids that are no expert's, negative or too large, mask their entry.

        Args:
            x: `(n, hidden)` with `n` from 0 to `max_tokens`, which may differ by rank. bf16: `bfloat16` of `ml_dtypes`, `uint16`
                (the bits) or `float32`, which is rounded to bfloat16, to the nearest and to even. fp16: `float16`. Of 8 bits:
                `uint8` (the bits), `float8_e4m3fn` of `ml_dtypes` and others of a byte. Of 4 bits: `uint8`, `(n, hidden / 2)`.
                bytes: a type of a byte, `(n, row_bytes)`.
            ids: `(n, topk)` of `ids_dtype`: ids of experts from 0 on; -1 masks an entry.
            weights: float32 `(n, topk)`. A NaN is refused in a simulated world. On GPUs the host does not look at them, and where
                they are applied the token's row is NaN.
            scales: of rows that are given quantised. fp8 and fp8-fnuz: float32 `(n, hidden / 128 rounded up)`. fp8-token and int8:
                float32 `(n, 1)`. fp8-ue8m0: bytes, `(n, hidden / 512 rounded up * 4)`. mxfp8 and mxfp4: bytes, `(n, hidden / 32)`;
                nvfp4: bytes, `(n, hidden / 16)`; bytes: `(n, scale_bytes)`.
                Of others none. Where dispatch quantises to nvfp4: float32 `(1, 1)`, the scale of all rows.
            max_tokens: a number that is the same on all ranks, and on none less than `n`, for which the smallest of `capacities` is
                taken; the largest if none.
        """
        if self._device is not None:
            return self._device.dispatch(x, ids, weights, scales, max_tokens)
        sent = self._sent(x, ids, weights, scales, max_tokens)
        return self._simulated(*sent, self._stages.begin(sent[2], "received"))

    def dispatch_send(self, x: Any, ids: Any, weights: Any, *, scales: Any = None, max_tokens: int | None = None) -> Sending:
        """The first half of `dispatch`, of an operation that is `split`: sends, and waits for no rank. `dispatch_receive` goes on,
        after whatever is launched in between."""
        self._is_split()
        if self._device is not None:
            return Sending(self, self._device.dispatch(x, ids, weights, scales, max_tokens, half=True))
        sent = self._sent(x, ids, weights, scales, max_tokens)
        # Simulated ranks have nothing to do in between.
        return Sending(self, (self._stages.begin(sent[2], "sent"), lambda stage: self._simulated(*sent, stage)))

    def dispatch_receive(self, sending: Sending) -> Any:
        """The second half: receives what other ranks sent. Returns what `dispatch` does."""
        going_on = self._goes_on("sending", sending, Sending)
        if self._device is not None:
            return self._device.receive(going_on)
        stage, receive = going_on
        self._stages.go_on(stage, "sent", "received")
        return receive(stage)

    def _sent(self, x: Any, ids: Any, weights: Any, scales: Any, max_tokens: int | None) -> tuple[list[Any], Any, int]:
        """The bytes that each simulated rank sends, the type of rows, and the capacity."""
        tokens = self._capacity(max_tokens)
        ranks = self._world.ranks
        rows = _arrays.each_rank("x", x, ranks)
        entries = [_arrays.each_rank("ids", ids, ranks), _arrays.each_rank("weights", weights, ranks)]
        scaled = self._scales(scales)
        sent = []
        for rank, row in enumerate(rows):
            given = (self._combined_types, self._hidden) if self._quantises else (ROWS[self._dtype], self._row)
            _arrays.checked(f"x[{rank}]", row, given[0], (None, given[1]))
            if row.dtype != rows[0].dtype:
                raise InvalidArgument(f"x[{rank}].dtype", row.dtype, f"{rows[0].dtype}, as on rank 0")
            if len(row) > tokens:
                raise InvalidArgument(f"x[{rank}].shape", row.shape, f"at most {tokens} rows, max_tokens")
            shape = (len(row), self._topk)
            _arrays.checked(f"ids[{rank}]", entries[0][rank], (self._ids,), shape)
            _arrays.checked(f"weights[{rank}]", entries[1][rank], ("float32",), shape)
            check_weights(rank, entries[0][rank], entries[1][rank], self._experts)
            scale = self._scale_of(rank, len(row), scaled)
            of_entries = entries[0][rank].tobytes(), entries[1][rank].tobytes()
            sent.append((self._to_wire(row).tobytes(), *of_entries, scale, self._tables.of_rank(rank)))
        types = rows[0].dtype, scaled[0].dtype if scaled else None
        if self._quantises:
            import numpy as np

            types = np.dtype(np.uint8), np.dtype(self._scale_types[0])
        return sent, types, tokens

    def _simulated(
        self, sent: list[Any], types: tuple[np.dtype, np.dtype | None], tokens: int, stage: tuple[int, int]
    ) -> Dispatched:
        """Dispatches on simulated ranks."""
        round_, found = self._cores[tokens].dispatch(sent)
        self._tables.count(found)
        return self._dispatched((round_, stage), found, types, tokens)

    def _is_split(self) -> None:
        if not self._split:
            raise InvalidArgument("split", False, "True, when the operation is made, for calls that send or receive only")

    def _goes_on(self, field: str, given: Any, kind: type) -> Any:
        """What a half of an operation left for the other."""
        if not isinstance(given, kind) or given._of is not self:
            raise InvalidArgument(field, type(given).__name__, f"what {'dispatch' if kind is Sending else 'combine'}_send returned")
        return given._go_on

    def combine(self, d: Dispatched | DispatchedTensors, y: Any, *, out: Any = None) -> Any:
        """Brings the experts' outputs back, summed, to the ranks that have the tokens.

        Rank-major rows are added as they are: the weights are the experts' business, unless the operation is `weighted`. Rows by
        expert are weighted here. In a world of GPUs `y` and `out` are tensors.

        Args:
            d: the last dispatch of its capacity, which can be combined once.
            y: `(places, hidden)` for each rank, in the order of `d.rows`; rows where nothing came are not read. Rank-major: the
                sum of this rank's experts' outputs of a row, each times its weight in `d.weights`, or without the weights if the
                operation is `weighted`. Else each row's output, not weighted. fp16: `float16`; others: `bfloat16`, `uint16` or
                `float32`, which is rounded.
            out: arrays that results go to, if given: none has memory of `y`.

        Returns `(n, hidden)` for each rank, of the type of `y`; float32 has the values of the bfloat16 that travelled.
        """
        if self._device is not None:
            return self._device.combine(d, y, out)
        d, rows = self._returned(d, y)
        into = self._into(d, rows, out)
        self._stages.end(d._stage, "received")
        return self._combined(d, rows, into)

    def combine_send(self, d: Dispatched | DispatchedTensors, y: Any) -> Returning:
        """The first half of `combine`, of an operation that is `split`: sends, and waits for no rank."""
        self._is_split()
        if self._device is not None:
            return Returning(self, self._device.combine_send(d, y))
        d, rows = self._returned(d, y)
        self._stages.go_on(d._stage, "received", "sent back")
        # What is sent back is what `y` has now.
        return Returning(self, (d, [row.copy() for row in rows]))

    def combine_receive(self, returning: Returning, *, out: Any = None) -> Any:
        """The second half: sums what comes back. Returns what `combine` does."""
        going_on = self._goes_on("returning", returning, Returning)
        if self._device is not None:
            return self._device.combine_receive(going_on, out)
        d, rows = going_on
        into = self._into(d, rows, out)
        self._stages.end(d._stage, "sent back")
        return self._combined(d, rows, into)

    def set_wait_budget(self, seconds: float) -> None:
        """Lets waits of launches from here on last so long before the world is aborted; graphs keep what they were captured with.
        Ranks may have budgets of their own. Simulated ranks have none."""
        budget = seconds_of("seconds", seconds)
        if self._device is not None:
            self._device.set_wait_budget(budget)

    def _returned(self, d: Any, y: Any) -> tuple[Dispatched, list[np.ndarray]]:
        """What each simulated rank sends back."""
        if not isinstance(d, Dispatched) or d._of is not self:
            raise InvalidArgument("d", type(d).__name__, "what dispatch of this operation returned")
        types = self._combined_types
        rows = _arrays.each_rank("y", y, self._world.ranks)
        for rank, row in enumerate(rows):
            _arrays.checked(f"y[{rank}]", row, types, (len(d.rows[rank]), self._hidden))
            if row.dtype != rows[0].dtype:
                raise InvalidArgument(f"y[{rank}].dtype", row.dtype, f"{rows[0].dtype}, as on rank 0")
        return d, rows

    def _into(self, d: Dispatched, rows: list[np.ndarray], out: Any) -> list[np.ndarray] | None:
        """Arrays that results go to, if there are some."""
        into = _arrays.outputs("out", out, self._results_like(d, rows[0].dtype))
        if into is not None:
            _arrays.apart("out", into, "y", rows)
        return into

    def _combined(self, d: Dispatched, rows: list[np.ndarray], into: list[np.ndarray] | None) -> list[np.ndarray]:
        """Combines on simulated ranks."""
        import numpy as np

        dtype = rows[0].dtype
        found = self._cores.get(d.capacity, self._core).combine(d._round, [self._to_wire(row).tobytes() for row in rows])
        if self._counts_missing:
            d.missing[:] = [_arrays.from_bytes(missing, np.dtype(np.int32), (-1,)) for _, missing in found]
        return _arrays.delivered([self._from_wire(out, dtype, self._hidden) for out, _ in found], into)

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

    def _from_wire(self, raw: bytes, dtype: np.dtype, elements: int) -> np.ndarray:
        """Rows of so many elements that travelled, in the type that the caller has."""
        import numpy as np

        if dtype.name == "float32":
            return _arrays.from_bf16(np.frombuffer(raw, np.uint16)).reshape(-1, elements)
        return _arrays.from_bytes(raw, dtype, (-1, elements))

    def _scales(self, scales: Sequence[Any] | None) -> list[np.ndarray] | None:
        """The scales of all ranks, where there are some to be."""
        wanted = self._of_tensor or (self._scales_row > 0 and not self._quantises)
        if wanted != (scales is not None):
            nothing = "dispatch works them out" if self._quantises else f"rows are {self._dtype}"
            kind = "float32" if self._of_tensor else self._scale_types[0]
            allowed = f"a list of {kind} arrays" if wanted else f"nothing: {nothing}"
            raise InvalidArgument("scales", "none" if scales is None else type(scales).__name__, allowed)
        return None if scales is None else _arrays.each_rank("scales", scales, self._world.ranks)

    def _scale_of(self, rank: int, n: int, scales: list[np.ndarray] | None) -> bytes | None:
        if scales is None:
            return None
        if self._of_tensor:
            return _arrays.checked(f"scales[{rank}]", scales[rank], SCALES[True], (1, 1)).tobytes()
        shape = (n, self._scales_row)
        return _arrays.checked(f"scales[{rank}]", scales[rank], self._scale_types, shape).tobytes()

    def _ordered(self, scales: bytes, capacity: int) -> np.ndarray:
        """Scales that do not stand row by row."""
        import numpy as np

        matrices, rows, whole, words = self._cores[capacity].scale_shape()
        if self._scale_layout == "128x4":
            all_of_them = np.frombuffer(scales, np.uint8).reshape(matrices, whole, 4 * words)
        else:
            kind = np.float32 if self._scale_types == SCALES[True] else np.int32
            all_of_them = np.frombuffer(scales, kind).reshape(matrices, words, whole).transpose(0, 2, 1)[:, :rows]
        return all_of_them if self._layout == "expert_strided" else all_of_them[0]

    def _dispatched(
        self, made: tuple[_core.Round, tuple[int, int]], found: list[dict[str, bytes]], types: Any, capacity: int
    ) -> Dispatched:
        """Arrays of the bytes that each rank has."""
        import numpy as np

        def each(name: str, of: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
            return [_arrays.from_bytes(one[name], np.dtype(of), shape) for one in found]

        (dtype, scale_dtype), firsts = types, self._first_expert
        own = [end - start for start, end in pairwise(firsts)]
        scales: list[np.ndarray] = []
        if scale_dtype is not None and self._scale_layout == "row":
            scales = each("row_scale", scale_dtype, (-1, self._scales_row))
        elif scale_dtype is not None:
            scales = [self._ordered(one["row_scale"], capacity) for one in found]
        ids: list[np.ndarray] = []
        weights: list[np.ndarray] = []
        gather: list[np.ndarray] = []
        if self._layout == "rank_major":
            ids = each("entry_expert", np.int32, (-1, self._topk))
            sent = each("weight_from", np.float32, (-1, self._topk))
            weights = [np.where(e < 0, np.float32(0), w) for e, w in zip(ids, sent, strict=True)]
            ids = [np.where(e < 0, np.int32(self._empty_id), e) for e in ids]
            gather = each("gather", np.int32, (-1,))
        starts = each("expert_start", np.int32, (-1,))
        counts = each("expert_rows", np.int32, (-1,))
        return Dispatched(
            rows=[self._from_wire(one["rows"], dtype, self._row) for one in found],
            scales=scales,
            ids=ids,
            weights=weights,
            gather=gather,
            expert_start=[start[: n + 1] for start, n in zip(starts, own, strict=True)],
            expert_rows=[count[:n] for count, n in zip(counts, own, strict=True)],
            overflow=each("overflow", np.int32, (1,)) if "overflow" in found[0] else [],
            needed=each("needed", np.int32, (1,)) if "needed" in found[0] else [],
            missing=[],
            first_expert=firsts[:-1],
            tokens_from=each("n_from", np.int32, (-1,)),
            layout=self._layout,
            capacity=capacity,
            _of=self,
            _round=made[0],
            _stage=made[1],
        )


def check_weights(rank: int, ids: np.ndarray, weights: np.ndarray, experts: int) -> None:
    """Whether the weights of experts' entries are numbers."""
    # NaN alone differs from itself.
    wrong = (weights != weights) & (ids >= 0) & (ids < experts)
    if wrong.any():
        token, k = (int(at[0]) for at in wrong.nonzero())
        raise InvalidArgument(f"weights[{rank}][{token}, {k}]", weights[token, k], "a number")


def _empty_id(empty_id: int, renamed: dict[str, Any]) -> Any:
    """The id of no expert, which may come by the former name of `empty_id`."""
    old = "nobody"
    for unknown in renamed.keys() - {old}:
        raise TypeError(f"MoeAllToAll() got an unexpected keyword argument {unknown!r}")
    if old not in renamed:
        return empty_id
    warnings.warn(f"MoeAllToAll: {old} is called empty_id, and the next release refuses {old}", DeprecationWarning, stacklevel=3)
    return renamed[old]


def _rows(dtype: str, row_bytes: int | None, scale_bytes: int | None) -> str:
    """What rows travel as, with the sizes of bytes."""
    if dtype == "bytes":
        if row_bytes is None:
            raise InvalidArgument("row_bytes", row_bytes, "the bytes of a row, for rows of bytes")
        return f"bytes-{whole('row_bytes', row_bytes, 1, 2**31)}-{whole('scale_bytes', scale_bytes or 0, 0, 2**31)}"
    for name, given in (("row_bytes", row_bytes), ("scale_bytes", scale_bytes)):
        if given is not None:
            raise InvalidArgument(name, given, f"none for {dtype}, whose sizes follow from hidden")
    return dtype


def _ascending(capacities: Sequence[int], most: int) -> list[int]:
    """Capacities in ascending order, the largest last."""
    ladder = [whole(f"capacities[{at}]", one, 1, most) for at, one in enumerate(capacities)]
    for at, (few, many) in enumerate(pairwise(ladder), 1):
        if many <= few:
            raise InvalidArgument(f"capacities[{at}]", many, f"more than {few}, the one before")
    return ladder if ladder and ladder[-1] == most else [*ladder, most]
