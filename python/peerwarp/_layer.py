"""Whole MoE layers: tokens to their experts, both products there, and the weighted sums back."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peerwarp import _arrays
from peerwarp._collectives import Collectives
from peerwarp._device import Device, overlap
from peerwarp._moe import ROWS, MoeAllToAll, check_weights
from peerwarp._operation import ARRAYS, TENSORS, operation
from peerwarp._world import World, runs_on, whole
from peerwarp.errors import InvalidArgument

#: The kernels' names of types of weights, by those of PyTorch and NumPy.
DTYPES = {"bfloat16": "bf16", "uint16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "uint8": "fp8"}
#: Activations, and whether they have gates.
ACTIVATIONS = {"swiglu": True, "swiglu-clamped": True, "silu": False, "relu": False, "none": False}
#: Rows of a weight matrix that are gates, before as many that are values; rows and columns that a scale of fp8 is of.
GATES, BLOCK = 16, 128
#: What experts' rows begin at multiples of, where a layer is several launches.
ALIGN = 8
#: Rounds that decide which way is faster, and layers of each.
ROUNDS, LAYERS = 5, 4


@dataclass(frozen=True, eq=False)
class MoeWeights:
    """The weights of a rank's `E` experts, as `MoeLayer` takes them: tensors of PyTorch, or NumPy arrays.

    Attributes:
        w1: `(E, 2 * inter, hidden)`: 16 rows for gates, 16 for values, and so on; without gates `(E, inter, hidden)`.
        w2: `(E, hidden, inter)`.
        w1_scales: of fp8 only: float32 `(E, 2, inter / 128, hidden / 128)`, gates first; without gates `(E, 1, ..)`.
        w2_scales: of fp8 only: float32 `(E, hidden / 128, inter / 128)`.
        b1: what is added to the first products, if anything is: `(E, 2 * inter)` in the order of the rows of `w1`.
        b2: what is added to the second ones: `(E, hidden)`.
        activation: `"swiglu"`, `"swiglu-clamped"` (gpt-oss), `"silu"`, `"relu"` or `"none"`.
    """

    w1: Any
    w2: Any
    w1_scales: Any = None
    w2_scales: Any = None
    b1: Any = None
    b2: Any = None
    activation: str = "swiglu"

    @property
    def dtype(self) -> str:
        """What they are: `"bf16"`, `"fp16"` or `"fp8"`."""
        return _dtype("w1", self.w1)

    @classmethod
    def of_modules(cls, modules: Sequence[Any], *, device: Any = None) -> MoeWeights:
        """Of a rank's experts as modules with `gate_proj`, `up_proj` and `down_proj`: DeepSeek-V3, Qwen3. With fp8 each has
        `weight_scale_inv`."""
        weights: list[list[Any]] = [[], [], []]
        scales: list[list[Any]] = [[], [], []]
        for number, module in enumerate(modules):
            for at, name in enumerate(("gate_proj", "up_proj", "down_proj")):
                linear: Any = getattr(module, name, None)
                field = f"modules[{number}].{name}"
                if getattr(linear, "weight", None) is None:
                    raise InvalidArgument(field, type(linear).__name__, "a module with a weight")
                if getattr(linear, "bias", None) is not None:
                    raise InvalidArgument(f"{field}.bias", "a bias", "none")
                weights[at].append(linear.weight)
                if (scale := getattr(linear, "weight_scale_inv", None)) is not None:
                    scales[at].append(scale)
        return cls.of_experts(*weights, scales=scales if any(scales) else None, device=device)

    @classmethod
    def of_experts(cls, gate: Any, up: Any, down: Any, *, scales: Any = None, device: Any = None) -> MoeWeights:
        """Of the matrices of a rank's experts: each a list with one for each expert, or all in one array.

        Args:
            gate: `(inter, hidden)` of each expert: bf16, fp16, or fp8 (e4m3); in NumPy bits as `uint16` and `uint8`.
            up: the same of values. Of `gate_up_proj`, `(E, 2 * inter, hidden)`, the two are `gate_up_proj.chunk(2, 1)`.
            down: `(hidden, inter)` of each expert.
            scales: of fp8 only: the three's `weight_scale_inv`, float32, one for each 128 rows and columns.
            device: where tensors are to be; where the first one is unless said.
        """
        gates = _each("gate", gate)
        (inter, hidden), experts, names = gates[0].shape, len(gates), (_name(gates[0]),)
        ups = _each("up", up, (experts, inter, hidden), names)
        downs = _each("down", down, (experts, hidden, inter), names)
        dtype = _dtype("gate", gates[0])
        _check_sizes(inter, hidden, dtype)
        if (scales is not None) != (dtype == "fp8") or (scales is not None and len(scales) != 3):
            allowed = "three, of gate, up and down" if dtype == "fp8" else f"none: {dtype} has none"
            raise InvalidArgument("scales", "none" if scales is None else len(scales), allowed)
        w1, w2 = _stacked((gates, ups), GATES, device), _stacked((downs,), hidden, device)
        if scales is None:
            return cls(w1, w2)
        rows, columns = inter // BLOCK, hidden // BLOCK
        shapes = (experts, rows, columns), (experts, rows, columns), (experts, columns, rows)
        each = [_each(f"scales[{at}]", scales[at], shape, ("float32",)) for at, shape in enumerate(shapes)]
        w1_scales = _stacked(each[:2], rows, device).reshape(experts, 2, rows, columns)
        return cls(w1, w2, w1_scales, _stacked(each[2:], columns, device))

    @classmethod
    def of_gpt_oss(cls, gate_up: Any, gate_up_bias: Any, down: Any, down_bias: Any, *, device: Any = None) -> MoeWeights:
        """Of the matrices and biases of a rank's experts as gpt-oss has them, in bf16 or fp16.

        Args:
            gate_up: `gate_up_proj`, `(E, hidden, 2 * inter)`: a column for a gate, one for a value, and so on.
            gate_up_bias: `gate_up_proj_bias`, `(E, 2 * inter)`, in the same order.
            down: `down_proj`, `(E, inter, hidden)`.
            down_bias: `down_proj_bias`, `(E, hidden)`.
            device: as of `of_experts`.
        """
        both = _each("gate_up", gate_up, names=[name for name, dtype in DTYPES.items() if dtype != "fp8"])
        (hidden, columns), experts, names = both[0].shape, len(both), (_name(both[0]),)
        if columns % 2:
            raise InvalidArgument("gate_up.shape", (experts, hidden, columns), "an even number of columns")
        downs = _each("down", down, (experts, columns // 2, hidden), names)
        b1 = _each("gate_up_bias", gate_up_bias, (experts, columns), names)
        b2 = _each("down_bias", down_bias, (experts, hidden), names)
        gates, ups = ([one[:, part::2].T for one in both] for part in range(2))
        made = cls.of_experts(gates, ups, [one.T for one in downs], device=device)
        biases = _stacked([[one[part::2] for one in b1] for part in range(2)], GATES, device), _stacked((b2,), hidden, device)
        return cls(made.w1, made.w2, b1=biases[0], b2=biases[1], activation="swiglu-clamped")


def _name(array: Any) -> str:
    """The name of an array's type, as of NumPy and of PyTorch."""
    return str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")


def _dtype(field: str, array: Any) -> str:
    """The kernels' name of the type of weights."""
    if _name(array) not in DTYPES:
        raise InvalidArgument(f"{field}.dtype", _name(array), ", ".join(DTYPES))
    return DTYPES[_name(array)]


def _check(field: str, array: Any, names: Sequence[str], shape: tuple[int, ...], why: str = "") -> None:
    """Whether an array has one of these types and this shape."""
    if _name(array) not in names:
        raise InvalidArgument(f"{field}.dtype", _name(array), " or ".join(names))
    if tuple(array.shape) != shape:
        raise InvalidArgument(f"{field}.shape", tuple(array.shape), f"{shape}{why}")


def _each(field: str, given: Any, shape: tuple[int, ...] | None = None, names: Sequence[str] = tuple(DTYPES)) -> list[Any]:
    """What each expert has, of a list or of one array: of a shape whose first number is that of experts, or else matrices alike."""
    # Parameters would let everything that is made of them have gradients.
    each = [one.detach() if hasattr(one, "detach") else one for one in given] if hasattr(given, "__iter__") else []
    if not each or (shape is not None and len(each) != shape[0]):
        allowed = "one for each of this rank's experts" if shape is None else f"{shape[0]}, one for each expert"
        raise InvalidArgument(field, f"{len(each)} arrays", allowed)
    if shape is None:
        shape = (len(each), *getattr(each[0], "shape", ()))
        names = (_name(each[0]),) if _name(each[0]) in names else names
        if len(shape) != 3:
            raise InvalidArgument(f"{field}[0].shape", shape[1:], "a matrix")
    for number, one in enumerate(each):
        _check(f"{field}[{number}]", one, names, shape[1:])
    return each


def _check_sizes(inter: int, hidden: int, dtype: str) -> None:
    """Whether there are whole blocks of gates, of values, and of what a scale is of."""
    for name, size, of in (("inter", inter, GATES), ("hidden", hidden, 8)):
        unit = BLOCK if dtype == "fp8" else of
        if size == 0 or size % unit:
            raise InvalidArgument(name, size, f"a multiple of {unit} with {dtype}")


def _stacked(parts: Sequence[Sequence[Any]], turn: int, device: Any) -> Any:
    """One array of all experts, in each of which parts take turns of so many rows."""
    (rows, *rest), experts = parts[0][0].shape, len(parts[0])
    made = _empty(parts[0][0], (experts, rows // turn, len(parts), turn, *rest), device)
    for at, part in enumerate(parts):
        for number, one in enumerate(part):
            made[number, :, at] = one.reshape(-1, turn, *rest)
    return made.reshape(experts, len(parts) * rows, *rest)


def _empty(like: Any, shape: tuple[int, ...], device: Any) -> Any:
    """An array of the type of another one, or a tensor, which may be on another device."""
    if hasattr(like, "new_empty"):
        return like.new_empty(shape, device=like.device if device is None else device)
    if device is not None:
        raise InvalidArgument("device", device, "none: arrays of NumPy have none")
    import numpy as np

    return np.empty(shape, like.dtype)


def _filled(array: Any, length: int) -> Any:
    """An array of so many rows, with zeros behind those that are there."""
    if len(array) == length:
        return array
    room = _empty(array, (length, *array.shape[1:]), None)
    room[: len(array)], room[len(array) :] = array, 0
    return room


class MoeLayer:
    """A layer of experts: brings tokens to the ranks of their experts, multiplies them there, and brings the weighted sums back.

    Experts are spread over ranks as by `MoeAllToAll`; `experts_of` says which ones a rank has. All ranks make and call their layers
    in the same order, ranks without tokens, too. On GPUs CUDA graphs may capture calls. Layers of a model with the same sizes share
    kernels and memory: `with_weights`.

    Args:
        world: the ranks.
        hidden: elements of a token's row: a multiple of 8, of 128 with fp8.
        inter: columns between the two products: a multiple of 16, of 128 with fp8.
        experts: experts of all ranks together, one for each rank at least.
        topk: expert ids of a token.
        max_tokens: the most tokens of a rank.
        weights: a `MoeWeights` of this rank's experts; in a simulated world a list with one for each rank.
        dtype: `"bf16"`, `"fp16"` or `"fp8"` (e4m3, with results of bf16): that of the weights, if given.
        activation: that of the weights, if given.
        way: `"fused"`, one launch, or `"apart"`: dispatch, two products of all experts, and combine. None: on GPUs both are timed
            with `max_tokens` when the layer is made, in memory for both, and all ranks take the one whose slowest rank is faster;
            else `"fused"`.

    Attributes:
        way: how it runs: `"fused"` or `"apart"`.
        kernels: names of its kernels; those of dispatch and combine in a world of GPUs alone.
        memory_bytes: bytes that it has on this rank's GPU besides the weights; 0 in a simulated world.
    """

    def __init__(
        self,
        world: World,
        *,
        hidden: int,
        inter: int,
        experts: int,
        topk: int,
        max_tokens: int,
        weights: Any,
        dtype: str | None = None,
        activation: str | None = None,
        way: str | None = None,
    ) -> None:
        on, ranks = runs_on(world), world.ranks
        self._world, self._device = world, on if isinstance(on, Device) else None
        sizes = {"hidden": hidden, "inter": inter, "experts": experts, "topk": topk, "max_tokens": max_tokens}
        numbers = [whole(name, size, ranks if name == "experts" else 1, 65536) for name, size in sizes.items()]
        self._hidden, self._inter, self._experts, self._topk, self._tokens = numbers
        #: The most experts of a rank.
        self._most = -(-self._experts // ranks)
        if self._device is not None:
            self._device.settled("MoeLayer")
        first = self._of_ranks("weights", weights, MoeWeights)[0][1]
        self._dtype, self._activation = dtype or first.dtype, activation or first.activation
        named = {"way": (way, (None, *_WAYS)), "dtype": (self._dtype, ("bf16", "fp16", "fp8"))}
        for name, (value, known) in (named | {"activation": (self._activation, tuple(ACTIVATIONS))}).items():
            if value not in known:
                raise InvalidArgument(name, value, ", ".join(one for one in known if one))
        _check_sizes(self._inter, self._hidden, self._dtype)
        self._is_fp8, self._bias = self._dtype == "fp8", first.b1 is not None
        #: Type of results.
        self._result = "bf16" if self._is_fp8 else self._dtype
        self._weights = self._taken(weights)
        ways, made = [way] if way else list(_WAYS) if self._device else ["fused"], []
        for name in ways:
            try:
                made.append(_WAYS[name](self))
            except InvalidArgument:
                # Where both are allowed, one may not take such sizes.
                if not made and name == ways[-1]:
                    raise
        self._run = self._fastest(made)
        self.way, self.kernels, self.memory_bytes = self._run.way, self._run.kernels, self._run.memory_bytes

    def with_weights(self, weights: Any) -> MoeLayer:
        """A layer with other weights, of the same sizes. Both have one memory: calls are in one order, as those of one layer."""
        other = copy.copy(self)
        other._weights = self._taken(weights)
        return other

    @staticmethod
    def experts_of(experts: int, ranks: int, rank: int) -> range:
        """The experts of a rank: the first `experts % ranks` ranks have one more than the others."""
        each, more = divmod(experts, ranks)
        first = rank * each + min(rank, more)
        return range(first, first + each + (rank < more))

    def __call__(self, x: Any, ids: Any, weights: Any, *, scales: Any = None, out: Any = None) -> Any:
        """The layer's rows `(n, hidden)`, of the type of `x`, or of bf16 with fp8.

        In a simulated world arguments and results are lists with one array for each rank. In a world of GPUs they are tensors on
        this rank's GPU, and launches go to PyTorch's current stream.

        Args:
            x: `(n, hidden)` with `n` from 0 to `max_tokens`, which may differ by rank, of types as of `MoeAllToAll.dispatch`.
            ids: int32 `(n, topk)`: ids of experts from 0 on; others mask their entry. A token without experts gets zeros.
            weights: float32 `(n, topk)`. A NaN is refused in a simulated world.
            scales: of fp8 only: float32 `(n, hidden / 128)`.
            out: where results go, if given: no memory of `x`.
        """
        if (scales is not None) != self._is_fp8:
            allowed = "float32 (n, hidden / 128)" if self._is_fp8 else f"nothing: rows are {self._dtype}"
            raise InvalidArgument("scales", "none" if scales is None else type(scales).__name__, allowed)
        rows = TENSORS[self._dtype] if self._device else ARRAYS["fp8"] if self._is_fp8 else ROWS[self._dtype]
        asked: dict[str, tuple[Any, Sequence[str], int]] = {"x": (x, rows, self._hidden)}
        asked |= {"ids": (ids, ("int32",), self._topk), "weights": (weights, ("float32",), self._topk)}
        asked |= {"scales": (scales, ("float32",), self._hidden // BLOCK)} if self._is_fp8 else {}
        given: dict[str, list[Any]] = {name: [] for name in asked}
        for name, (values, dtypes, width) in asked.items():
            for at, (field, one, _) in enumerate(self._of_ranks(name, values)):
                array = self._array(field, one)
                given[name].append(array)
                n = next(iter(given["x"][at].shape), 0)
                _check(field, array, (_name(given["x"][0]),) if name == "x" and at else dtypes, (n, width))
                if n > self._tokens:
                    raise InvalidArgument(f"{field}.shape", tuple(array.shape), f"at most {self._tokens} rows, max_tokens")
        if not self._device:
            return self._simulated(given, out)
        row = given["x"][0]
        out = self._room(self._device, len(row)) if out is None else self._array("out", out)
        _check("out", out, TENSORS[self._result], tuple(row.shape))
        if overlap(row, out):
            raise InvalidArgument("out", "memory of x", "memory of its own")
        self._run.layer({name: one for name, (one,) in given.items()}, self._weights, out)
        return out

    def _room(self, device: Device, n: int) -> Any:
        """Room for results."""
        dtype = getattr(device.torch, TENSORS[self._result][0])
        return device.torch.empty((n, self._hidden), dtype=dtype, device=device.device)

    def _simulated(self, given: dict[str, list[Any]], out: Any) -> list[Any]:
        import numpy as np

        rows = given["x"]
        for rank, (ids, weights) in enumerate(zip(given["ids"], given["weights"], strict=True)):
            check_weights(rank, ids, weights, self._experts)
        # Rows of float32 are rounded, and results of them have the values of bf16.
        is_wide, kind = rows[0].dtype == np.float32, np.dtype(np.uint16) if self._is_fp8 else rows[0].dtype
        into = _arrays.outputs("out", out, [np.broadcast_to(np.zeros((), kind), row.shape) for row in rows])
        _arrays.apart("out", into or [], "x", rows)
        made = [np.empty(row.shape, np.uint16 if is_wide else kind) for row in rows]
        given |= {"x": [_arrays.to_bf16(row) for row in rows]} if is_wide else {}
        self._run.layer(given, self._weights, made)
        return _arrays.delivered([_arrays.from_bf16(one) for one in made] if is_wide else made, into)

    def _of_ranks(self, name: str, given: Any, kind: type = object) -> list[tuple[str, Any, int]]:
        """What each rank gives, with its name and rank: of simulated ranks a list, else this rank's alone."""
        if not self._device and (not isinstance(given, (list, tuple)) or len(given) != self._world.ranks):
            raise InvalidArgument(name, type(given).__name__, f"a list of {self._world.ranks}, one for each rank")
        own = self._device and (name, given, self._device.rank)
        each = [own] if own else [(f"{name}[{rank}]", one, rank) for rank, one in enumerate(given)]
        for field, one, _ in each:
            if not isinstance(one, kind):
                raise InvalidArgument(field, type(one).__name__, f"a {kind.__name__}")
        return each

    def _array(self, field: str, given: Any) -> Any:
        """A tensor on this rank's GPU, or an array, whose elements are in memory one after another."""
        if not self._device:
            return _arrays.contiguous(field, _arrays.as_numpy(field, given))
        tensor = self._device.taken(field, given)
        self._device.placed(field, tensor)
        return tensor

    def _taken(self, weights: Any) -> dict[str, Any]:
        """Weights as operations take them."""
        each = [self._taken_of(*one) for one in self._of_ranks("weights", weights, MoeWeights)]
        return each[0] if self._device else {name: [one[name] for one in each] for name in each[0]}

    def _taken_of(self, field: str, given: Any, rank: int) -> dict[str, Any]:
        """A rank's weights, after a look at each, with room for the most experts of a rank."""
        for name, wanted in (("dtype", self._dtype), ("activation", self._activation)):
            if getattr(given, name) != wanted:
                raise InvalidArgument(f"{field}.{name}", getattr(given, name), wanted)
        own = self.experts_of(self._experts, self._world.ranks, rank)
        parts, blocks = 2 if ACTIVATIONS[self._activation] else 1, (self._inter // BLOCK, self._hidden // BLOCK)
        shapes: dict[str, tuple[bool, str, tuple[int, ...]]] = {
            "w1": (True, self._dtype, (parts * self._inter, self._hidden)),
            "w2": (True, self._dtype, (self._hidden, self._inter)),
            "w1_scales": (self._is_fp8, "f32", (parts, *blocks)),
            "w2_scales": (self._is_fp8, "f32", blocks[::-1]),
            "b1": (self._bias, self._result, (parts * self._inter,)),
            "b2": (self._bias, self._result, (self._hidden,)),
        }
        found = {}
        for name, (is_there, element, shape) in shapes.items():
            array, of = getattr(given, name), f"{field}.{name}"
            if (array is not None) != is_there:
                raise InvalidArgument(of, "none" if array is None else "an array", "an array" if is_there else "none")
            if array is not None:
                array = self._array(of, array)
                names = (TENSORS if self._device else ARRAYS)[element]
                _check(of, array, names, (len(own), *shape), f": this rank has experts {own.start} to {own.stop - 1}")
                found[name] = _filled(array, self._most)
        return found

    def _filled_with(self, number: int, element: str, shape: tuple[int, ...]) -> Any:
        """Memory of elements that are a number: a tensor, or an array of each simulated rank."""
        if self._device:
            torch = self._device.torch
            return torch.full(shape, number, dtype=getattr(torch, TENSORS[element][-1]), device=self._device.device)
        import numpy as np

        return [np.full(shape, number, ARRAYS[element][0]) for _ in range(self._world.ranks)]

    def _fastest(self, ways: list[_Fused | _Apart]) -> _Fused | _Apart:
        """The way whose slowest rank is faster. All ranks see the same times."""
        if len(ways) == 1 or self._device is None:
            return ways[0]
        own, torch = [self._time(self._device, way) for way in ways], self._device.torch
        times = torch.tensor(own, dtype=torch.float32, device=self._device.device)
        slowest = Collectives(self._world)
        found: list[float] = slowest.all_reduce(times, "max").tolist()
        slowest.free()
        return ways[found.index(min(found))]

    def _time(self, device: Device, way: _Fused | _Apart) -> float:
        """Milliseconds of a layer on this rank with the most tokens, which go anywhere."""
        torch, n, topk = device.torch, self._tokens, self._topk
        drawn = torch.Generator(device.device).manual_seed(device.rank)
        on = {"device": device.device, "dtype": torch.float32}
        x = torch.randn(n, self._hidden, generator=drawn, **on).to(getattr(torch, TENSORS[self._dtype][0]))
        ids = torch.rand(n, self._experts, generator=drawn, **on).topk(topk).indices.to(torch.int32)
        given = {"x": x, "ids": ids, "weights": torch.full((n, topk), 1 / topk, **on)}
        given |= {"scales": torch.ones(n, self._hidden // BLOCK, **on)} if self._is_fp8 else {}
        lasted: list[float] = []
        out = self._room(device, n)
        with torch.cuda.device(device.device):
            for _ in range(ROUNDS):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                # One before those that are timed lets ranks begin together.
                way.layer(given, self._weights, out)
                start.record()
                for _ in range(LAYERS):
                    way.layer(given, self._weights, out)
                end.record()
                end.synchronize()
                self._world.check()
                lasted.append(start.elapsed_time(end) / LAYERS)
        return statistics.median(lasted)


class _Fused:
    """All in one launch."""

    way = "fused"

    def __init__(self, of: MoeLayer) -> None:
        sizes = {"hidden": of._hidden, "inter": of._inter, "experts": of._experts, "topk": of._topk, "tokens": of._tokens}
        self._op = operation("moe_layer", of._world, **sizes, dtype=of._dtype, activation=of._activation, bias=of._bias)
        self.kernels, self.memory_bytes = (self._op.name,), self._op.memory_bytes
        # All rows are tokens: a larger number stands for as many.
        self._n = of._filled_with(of._tokens, "u32", (1,))

    def layer(self, given: dict[str, Any], w: dict[str, Any], out: Any) -> None:
        x = given["x"]
        rows = [len(one) for one in x] if isinstance(x, list) else len(x)
        passed = {"x_scale" if name == "scales" else name: one for name, one in given.items()}
        self._op(**passed, **w, n=self._n, rows_there=rows, out=out)


class _Apart:
    """Dispatch, both products of all experts, and combine."""

    way = "apart"

    def __init__(self, of: MoeLayer) -> None:
        self._is_on_gpu, self._is_fp8 = of._device is not None, of._is_fp8
        stand = {"layout": "expert_major", "expert_align": ALIGN, "scale_layout": "column" if of._is_fp8 else "row"}
        sizes: dict[str, Any] = {"hidden": of._hidden, "experts": of._experts, "topk": of._topk, "max_tokens": of._tokens, **stand}
        self._moe = MoeAllToAll(of._world, **sizes, dtype=of._dtype)
        places = -(-(of._world.ranks * of._tokens * of._topk + of._most * (ALIGN - 1)) // ALIGN) * ALIGN
        key = {"groups": of._most, "rows": places, "align": ALIGN, "dtype": of._dtype, "bias": of._bias}
        key |= {"scales": "block"} if of._is_fp8 else {}
        columns, out = (1 + ACTIVATIONS[of._activation]) * of._inter, {"out": "fp8"} if of._is_fp8 else {}
        self._first = operation("grouped_matmul", of._world, n=columns, k=of._hidden, activation=of._activation, **key, **out)
        self._second = operation("grouped_matmul", of._world, n=of._hidden, k=of._inter, **key)
        self._places = places
        self._between = of._filled_with(0, of._dtype, (places, of._inter))
        self._counts = of._filled_with(0, "i32", (of._most,))
        self._between_scales = of._filled_with(0, "f32", (of._inter // BLOCK * places,)) if of._is_fp8 else None
        # Where rows go back as wide as they came, they do from the same memory.
        self._y = of._filled_with(0, of._result, (places, of._hidden)) if of._is_fp8 else None
        self.kernels = (*(name for name, _ in self._moe.kernels), self._first.name, self._second.name)
        room = [self._between, self._counts, self._between_scales, self._y] if self._is_on_gpu else []
        own = sum(one.numel() * one.element_size() for one in room if one is not None)
        self.memory_bytes = own + sum(self._moe.memory_bytes) + self._first.memory_bytes + self._second.memory_bytes

    def layer(self, given: dict[str, Any], w: dict[str, Any], out: Any) -> None:
        d = self._moe.dispatch(**given)
        rows, counts, scales = d.rows, d.expert_rows, None
        if not self._is_on_gpu:
            # Simulated ranks have the rows that came.
            rows = [_filled(one, self._places) for one in rows]
            counts = [_filled(one, len(own)) for one, own in zip(counts, self._counts, strict=True)]
            scales = [one.T.copy() for one in d.scales]
        elif self._is_fp8:
            scales = d.scales.t()
        if self._is_on_gpu and len(counts) < len(self._counts):
            self._counts[: len(counts)].copy_(counts)
            counts = self._counts
        first, second, y = {}, {}, rows if self._y is None else self._y
        if self._is_fp8:
            first = {"x_scales": scales, "w_scales": w["w1_scales"], "out_scales": self._between_scales}
            second = {"x_scales": self._between_scales, "w_scales": w["w2_scales"]}
        if "b1" in w:
            first["bias"], second["bias"] = w["b1"], w["b2"]
        self._first(x=rows, counts=counts, w=w["w1"], out=self._between, **first)
        self._second(x=self._between, counts=counts, w=w["w2"], out=y, **second)
        came = y if self._is_on_gpu else [one[: len(rows)] for one, rows in zip(y, d.rows, strict=True)]
        self._moe.combine(d, came, out=out)


_WAYS: dict[str, type[_Fused] | type[_Apart]] = {"fused": _Fused, "apart": _Apart}
