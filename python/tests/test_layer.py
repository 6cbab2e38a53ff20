"""Whole layers, in one launch and in several: as plain NumPy computes them, from weights as checkpoints have them."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conftest import random, same_bits, wide
from peerwarp import InvalidArgument, MoeLayer, MoeWeights, World
from peerwarp._arrays import from_bf16, to_bf16

TOKENS, TOPK = 6, 2
WAYS = pytest.mark.parametrize("way", ["fused", "apart"])


def fp8(array: np.ndarray) -> np.ndarray:
    """The values of bits of e4m3, and float32 rounded to them."""
    return array.view(ml_dtypes.float8_e4m3fn).astype(np.float32) if array.dtype == np.uint8 else fp8_bits(array)


def fp8_bits(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def scaled(values: np.ndarray, scales: np.ndarray, rows: int) -> np.ndarray:
    """Values times the scales of blocks of so many rows and 128 columns."""
    return values * np.repeat(np.repeat(scales, rows, 0), 128, 1)


class Model:
    """Experts as a checkpoint has them, and plain NumPy's layer of them."""

    hidden, inter, dtype = 64, 48, "bf16"
    #: How much of the largest element rounding may move.
    near = 0.008

    def __init__(self, experts: int) -> None:
        self.experts = experts
        h, i = self.hidden, self.inter
        self.gate, self.up, self.down = (self.drawn((experts, *shape), seed) for seed, shape in enumerate([(i, h), (i, h), (h, i)]))

    def drawn(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        return to_bf16(random(shape, "float32", seed) / np.float32(np.sqrt(shape[-1])))

    def weights(self, own: range) -> MoeWeights:
        part = slice(own.start, own.stop)
        return MoeWeights.of_experts(list(self.gate[part]), self.up[part], self.down[part])

    def x(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        return random((n, self.hidden), "uint16", seed), None

    def expert(self, number: int, x: np.ndarray, _: np.ndarray | None) -> np.ndarray:
        gate, up, down = (wide(one[number]) for one in (self.gate, self.up, self.down))
        g, u = wide(x) @ gate.T, wide(x) @ up.T
        return from_bf16(to_bf16(g / (1 + np.exp(-g)) * u)) @ down.T


class Fp8(Model):
    """Weights of e4m3 with scales of blocks, as DeepSeek-V3 has them."""

    hidden, inter, dtype, near = 256, 128, "fp8", 0.02

    def __init__(self, experts: int) -> None:
        super().__init__(experts)
        shapes = [(1, 2), (1, 2), (2, 1)]
        rng = np.random.default_rng(9)
        self.scales = [rng.uniform(0.5, 2, (experts, *shape)).astype(np.float32) for shape in shapes]

    def drawn(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        return fp8_bits(random(shape, "float32", seed) / np.float32(np.sqrt(shape[-1])))

    def weights(self, own: range) -> MoeWeights:
        linear = lambda at, number: types.SimpleNamespace(  # noqa: E731
            weight=(self.gate, self.up, self.down)[at][number], bias=None, weight_scale_inv=self.scales[at][number]
        )
        names = "gate_proj", "up_proj", "down_proj"
        modules = [types.SimpleNamespace(**{name: linear(at, number) for at, name in enumerate(names)}) for number in own]
        return MoeWeights.of_modules(modules)

    def x(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        scales = np.random.default_rng(seed).uniform(0.5, 2, (n, self.hidden // 128)).astype(np.float32)
        return fp8_bits(random((n, self.hidden), "float32", seed)), scales

    def expert(self, number: int, x: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        assert scales is not None
        matrices = (self.gate, self.up, self.down)
        gate, up, down = (scaled(fp8(w[number]), s[number], 128) for w, s in zip(matrices, self.scales, strict=True))
        x = scaled(fp8(x), scales, 1)
        g, u = x @ gate.T, x @ up.T
        middle = g / (1 + np.exp(-g)) * u
        step = np.abs(middle).max(1, keepdims=True) / 448
        return fp8(fp8_bits(middle / np.where(step == 0, 1, step))) * step @ down.T


class GptOss(Model):
    """Gates and values in turn, biases, and a clamp that these weights reach."""

    def __init__(self, experts: int) -> None:
        self.experts, h, i = experts, self.hidden, self.inter
        self.gate_up, self.down = self.drawn((experts, h, 2 * i), 0), self.drawn((experts, i, h), 1)
        self.gate_up = to_bf16(wide(self.gate_up) * 12)
        self.biases = [to_bf16(random((experts, columns), "float32", seed)) for seed, columns in ((2, 2 * i), (3, h))]

    def weights(self, own: range) -> MoeWeights:
        part = slice(own.start, own.stop)
        return MoeWeights.of_gpt_oss(self.gate_up[part], self.biases[0][part], self.down[part], list(self.biases[1][part]))

    def expert(self, number: int, x: np.ndarray, _: np.ndarray | None) -> np.ndarray:
        both = wide(x) @ wide(self.gate_up[number]) + wide(self.biases[0][number])
        gate, up = np.minimum(both[:, ::2], 7), np.clip(both[:, 1::2], -7, 7)
        assert (both[:, ::2] > 7).any() and (np.abs(both[:, 1::2]) > 7).any()
        middle = to_bf16((up + 1) * gate / (1 + np.exp(-1.702 * gate)))
        return from_bf16(middle) @ wide(self.down[number]) + wide(self.biases[1][number])


MODELS = {"bf16": Model, "fp8": Fp8, "gpt-oss": GptOss}


class Problem:
    """A layer of so many ranks, one of which has no tokens; some ids are no expert's, a token names an expert twice."""

    def __init__(self, ranks: int, model: Model, counts: tuple[int, ...] = (TOKENS, 0, 3)) -> None:
        rng, self.model, self.ranks = np.random.default_rng(ranks), model, ranks
        given = [model.x(n, 20 + rank) for rank, n in enumerate(counts[:ranks])]
        self.x = [x for x, _ in given]
        self.scales = [one for _, one in given] if model.dtype == "fp8" else None
        self.ids = [rng.integers(-1, model.experts, (len(x), TOPK), dtype=np.int32) for x in self.x]
        self.ids[0][0], self.ids[0][1] = -1, model.experts - 1
        self.ids[0][2, 0] = model.experts
        self.weights = [rng.random((len(x), TOPK), dtype=np.float32) for x in self.x]

    def layer(self, **others: Any) -> MoeLayer:
        sizes = {"hidden": self.model.hidden, "inter": self.model.inter, "experts": self.model.experts, "topk": TOPK}
        weights = [self.model.weights(MoeLayer.experts_of(self.model.experts, self.ranks, rank)) for rank in range(self.ranks)]
        world = World.simulated(self.ranks, seed=5)
        return MoeLayer(world, **{"max_tokens": TOKENS, "weights": weights} | sizes | others)

    def run(self, layer: MoeLayer, **others: Any) -> list[np.ndarray]:
        found: list[np.ndarray] = layer(self.x, self.ids, self.weights, scales=self.scales, **others)
        return found

    def wanted(self) -> list[np.ndarray]:
        every = []
        for rank, (x, ids, weights) in enumerate(zip(self.x, self.ids, self.weights, strict=True)):
            out = np.zeros((len(x), self.model.hidden), np.float32)
            scales = None if self.scales is None else self.scales[rank]
            for number in range(self.model.experts):
                if (ids == number).any():
                    share = np.where(ids == number, weights, 0).sum(1, keepdims=True)
                    out += share * self.model.expert(number, x, scales)
            every.append(out)
        return every

    def close(self, found: list[np.ndarray]) -> bool:
        most = max(np.abs(one).max() for one in self.wanted() if one.size)
        return all(
            one.shape == wanted.shape and np.abs(wide(one) - wanted).max(initial=0) < self.model.near * most
            for one, wanted in zip(found, self.wanted(), strict=True)
        )


@WAYS
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_is_what_numpy_computes(name: str, ranks: int, way: str) -> None:
    # Of two ranks the second has an expert less.
    problem = Problem(ranks, MODELS[name](3 if ranks == 3 else 5))
    layer = problem.layer(way=way)
    found = problem.run(layer)
    assert problem.close(found)
    assert not found[0][0].any()  # a token without experts
    if ranks == 1:
        out = [np.empty_like(one) for one in found]
        assert problem.run(layer, out=out)[0] is out[0]
        assert same_bits(out[0], found[0])
    assert (layer.way, layer.memory_bytes, len(layer.kernels)) == (way, 0, 1 if way == "fused" else 2)
    if (name, way) == ("fp8", "apart"):
        # Columns of scales are as long as there are places for rows in dispatch.
        places = layer._run._places
        assert layer._run._moe._core.scale_shape()[1:3] == (places, places)
    assert layer.kernels[0].startswith("moe_layer" if way == "fused" else "grouped_matmul")


def test_simulated_ranks_take_one_launch_and_round_rows_of_float32() -> None:
    problem = Problem(2, Model(4))
    bits = problem.run(problem.layer(way="fused"))
    problem.x = [wide(x) for x in problem.x]
    layer = problem.layer()
    assert layer.way == "fused"
    found = problem.run(layer)
    assert all(same_bits(one, from_bf16(wanted)) for one, wanted in zip(found, bits, strict=True))


@WAYS
def test_layers_of_the_same_sizes_share_what_is_not_their_weights(way: str) -> None:
    problem, other = Problem(2, Model(3)), Model(3)
    first = problem.layer(way=way)
    found = problem.run(first)
    other.gate = to_bf16(wide(other.gate) * -2)
    second = first.with_weights([other.weights(range(2)), other.weights(range(2, 3))])
    assert all(same_bits(one, again) for one, again in zip(problem.run(first), found, strict=True))
    problem.model = other
    assert problem.close(problem.run(second)) and not problem.close(found)
    refused("weights[1].w1.shape", "experts 2 to 2", lambda: first.with_weights([other.weights(range(2))] * 2))


@WAYS
def test_all_ranks_may_be_without_tokens(way: str) -> None:
    problem = Problem(2, Model(2))
    nothing = [np.zeros((0, 64), np.uint16)] * 2, [np.zeros((0, TOPK), np.int32)] * 2, [np.zeros((0, TOPK), np.float32)] * 2
    layer = problem.layer(way=way)
    assert [one.shape for one in layer(*nothing)] == [(0, 64)] * 2
    assert problem.close(problem.run(layer))


@WAYS
def test_weights_without_gates_are_taken_as_they_are(way: str) -> None:
    model = Model(2)
    layer = Problem(1, model).layer(weights=[MoeWeights(model.up, model.down, activation="relu")], way=way)
    problem = Problem(1, model)
    model.expert = lambda number, x, _: (  # type: ignore[method-assign]
        from_bf16(to_bf16(np.maximum(wide(x) @ wide(model.up[number]).T, 0))) @ wide(model.down[number]).T
    )
    assert problem.close(problem.run(layer))


def test_rows_of_weights_are_sixteen_gates_and_sixteen_values_in_turn() -> None:
    model, oss = Model(2), GptOss(2)
    made = model.weights(range(2))
    assert (made.dtype, made.activation, made.w1.shape) == ("bf16", "swiglu", (2, 96, 64))
    assert same_bits(made.w1[1, 32:48], model.gate[1, 16:32]) and same_bits(made.w1[1, 48:64], model.up[1, 16:32])
    assert same_bits(made.w2, model.down)
    made = oss.weights(range(2))
    assert same_bits(made.w1[1, 0:16], np.ascontiguousarray(oss.gate_up[1, :, 0:32:2].T))
    assert same_bits(made.b1[1, 16:32], np.ascontiguousarray(oss.biases[0][1, 1:32:2])) and same_bits(made.b2, oss.biases[1])
    assert same_bits(made.w2[0], np.ascontiguousarray(oss.down[0].T)) and made.activation == "swiglu-clamped"
    scaled = Fp8(2).weights(range(2))
    assert (scaled.dtype, scaled.w1_scales.shape, scaled.w2_scales.shape) == ("fp8", (2, 2, 1, 2), (2, 2, 1))


@pytest.mark.parametrize("name", MODELS)
def test_tensors_are_converted_as_arrays_are(name: str) -> None:
    torch = pytest.importorskip("torch")
    model = MODELS[name](2)
    wanted, tensor_types = model.weights(range(2)), {"uint16": torch.bfloat16, "uint8": torch.float8_e4m3fn}

    def tensor(array: np.ndarray) -> Any:
        of = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array)
        # As parameters are, of which no gradient must be asked.
        whole = of.view(tensor_types[array.dtype.name]) if array.dtype.name in tensor_types else of
        return torch.nn.Parameter(whole, requires_grad=array.dtype != np.uint8)

    if name == "gpt-oss":
        found = MoeWeights.of_gpt_oss(*(tensor(one) for one in (model.gate_up, model.biases[0], model.down, model.biases[1])))
    else:
        scales = [tensor(one) for one in model.scales] if name == "fp8" else None
        found = MoeWeights.of_experts(*(tensor(one) for one in (model.gate, model.up, model.down)), scales=scales)
    for field in ("w1", "w2", "w1_scales", "w2_scales", "b1", "b2"):
        one, other = getattr(found, field), getattr(wanted, field)
        assert (one is None) == (other is None)
        if one is not None:
            assert not one.requires_grad and one.is_contiguous() and tuple(one.shape) == other.shape
            assert bytes(one.view(torch.uint8).flatten().tolist()) == other.tobytes()


GATE, DOWN = np.zeros((2, 32, 64), np.uint16), np.zeros((2, 64, 32), np.uint16)
LINEAR = types.SimpleNamespace(weight=GATE[0])
BIG, BIG_DOWN = np.zeros((1, 128, 256), np.uint8), np.zeros((1, 256, 128), np.uint8)
SCALES = [np.zeros((1, 1, 2), np.float32), np.zeros((1, 1, 2), np.float32), np.zeros((1, 2, 1), np.float32)]


@pytest.mark.parametrize(
    ("field", "allowed", "call"),
    [
        ("gate", "one for each of this rank's experts", lambda: MoeWeights.of_experts([], GATE, DOWN)),
        ("gate", "one for each of this rank's experts", lambda: MoeWeights.of_experts(3, GATE, DOWN)),
        ("gate[0].dtype", "bfloat16", lambda: MoeWeights.of_experts(GATE.astype(np.float32), GATE, DOWN)),
        ("gate[0].shape", "a matrix", lambda: MoeWeights.of_experts(GATE[0], GATE, DOWN)),
        ("gate[1].shape", "(32, 64)", lambda: MoeWeights.of_experts([GATE[0], GATE[0, :16]], GATE, DOWN)),
        ("up", "2, one for each expert", lambda: MoeWeights.of_experts(GATE, GATE[:1], DOWN)),
        ("up[0].dtype", "uint16", lambda: MoeWeights.of_experts(GATE, GATE.view(np.float16), DOWN)),
        ("down[0].shape", "(64, 32)", lambda: MoeWeights.of_experts(GATE, GATE, GATE)),
        ("inter", "a multiple of 16", lambda: MoeWeights.of_experts(GATE[:, :24], GATE[:, :24], DOWN[:, :, :24])),
        ("hidden", "a multiple of 8", lambda: MoeWeights.of_experts(GATE[:, :, :4], GATE[:, :, :4], DOWN[:, :4])),
        ("inter", "a multiple of 128", lambda: MoeWeights.of_experts(BIG[:, :64], BIG[:, :64], BIG_DOWN[:, :, :64])),
        ("scales", "three", lambda: MoeWeights.of_experts(BIG, BIG, BIG_DOWN)),
        ("scales", "three", lambda: MoeWeights.of_experts(BIG, BIG, BIG_DOWN, scales=SCALES[:2])),
        ("scales", "none", lambda: MoeWeights.of_experts(GATE, GATE, DOWN, scales=SCALES)),
        ("scales[2][0].shape", "(2, 1)", lambda: MoeWeights.of_experts(BIG, BIG, BIG_DOWN, scales=SCALES[:2] + SCALES[:1])),
        ("scales[0][0].dtype", "float32", lambda: MoeWeights.of_experts(BIG, BIG, BIG_DOWN, scales=[BIG, *SCALES[1:]])),
        ("modules[1].up_proj", "a weight", lambda: MoeWeights.of_modules(modules(up_proj=None))),
        ("modules[1].gate_proj.bias", "none", lambda: MoeWeights.of_modules(modules(gate_proj=biased()))),
        ("gate_up.shape", "even", lambda: MoeWeights.of_gpt_oss(DOWN[:, :, :31], GATE, GATE, GATE)),
        ("down[0].shape", "(16, 64)", lambda: MoeWeights.of_gpt_oss(DOWN, GATE[:, 0], GATE, GATE[:, 0])),
        ("gate_up_bias[0].shape", "(32,)", lambda: MoeWeights.of_gpt_oss(DOWN, GATE[:, 0], GATE[:, :16], GATE[:, 0])),
    ],
)
def test_a_conversion_names_what_it_cannot_take(field: str, allowed: str, call: Callable[[], object]) -> None:
    refused(field, allowed, call)


def modules(**second: Any) -> list[Any]:
    down = types.SimpleNamespace(weight=DOWN[0])
    first = {"gate_proj": LINEAR, "up_proj": LINEAR, "down_proj": down}
    return [types.SimpleNamespace(**first), types.SimpleNamespace(**first | second)]


def biased() -> Any:
    return types.SimpleNamespace(weight=GATE[0], bias=GATE[0, 0])


def refused(field: str, allowed: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument) as error:
        call()
    assert error.value.field == field
    assert allowed in error.value.allowed


def test_a_layer_names_what_it_cannot_take() -> None:
    problem = Problem(2, Model(3))
    good = [problem.model.weights(own) for own in (range(2), range(2, 3))]
    first = good[0]
    for field, allowed, others in (
        ("experts", "from 2", {"experts": 1}),
        ("max_tokens", "from 1", {"max_tokens": 0}),
        ("way", "fused, apart", {"way": "both"}),
        ("weights", "a list of 2", {"weights": first}),
        ("weights[1]", "a MoeWeights", {"weights": [first, None]}),
        ("activation", "swiglu-clamped", {"activation": "gelu"}),
        ("activation", "relu, none", {"weights": [replace(first, activation="gelu"), good[1]]}),
        ("dtype", "bf16, fp16, fp8", {"dtype": "int8"}),
        ("weights[0].activation", "silu", {"activation": "silu"}),
        ("weights[0].dtype", "fp16", {"dtype": "fp16"}),
        ("inter", "a multiple of 16", {"inter": 40}),
        ("weights[0].w1.shape", "(2, 128, 64)", {"inter": 64}),
        ("weights[1].w1.shape", "this rank has experts 2 to 2", {"weights": [first, first]}),
        ("weights[0].b2", "none", {"weights": [replace(first, b2=first.w2), good[1]]}),
        ("weights[0].b2", "an array", {"weights": [replace(first, b1=first.w1[:, :, 0].copy()), good[1]]}),
        ("weights[0].w1_scales", "none", {"weights": [replace(first, w1_scales=first.w2), good[1]]}),
        (
            "weights[1].w2.strides",
            "contiguous",
            {"weights": [first, replace(good[1], w2=good[1].w2.transpose(0, 2, 1).copy().T[..., :1].T.transpose(0, 2, 1))]},
        ),
    ):
        refused(field, allowed, lambda others=others: problem.layer(**others))
    layer = problem.layer(weights=good)
    x, ids, weights = problem.x, problem.ids, problem.weights
    some_nan = [weights[0] * np.float32(np.nan), weights[1]]
    more = [np.zeros((TOKENS + 1, 64), np.uint16), x[1]]
    for field, allowed, given in (
        ("x", "a list of 2", (x[0], ids, weights)),
        ("x[0].dtype", "bfloat16", ([one.astype(np.int32) for one in x], ids, weights)),
        ("x[1].dtype", "float32", ([wide(x[0]), x[1]], ids, weights)),
        ("x[1].shape", "(0, 64)", ([x[0], x[1][:, :8]], ids, weights)),
        ("x[0].shape", "at most 6 rows", (more, ids, weights)),
        ("ids[0].shape", "(6, 2)", (x, [ids[0][:5], ids[1]], weights)),
        ("ids[0].dtype", "int32", (x, [ids[0].astype(np.int64), ids[1]], weights)),
        ("weights[0].dtype", "float32", (x, ids, [weights[0].astype(np.float64), weights[1]])),
        ("weights[0][1, 0]", "a number", (x, ids, some_nan)),
    ):
        refused(field, allowed, lambda given=given: layer(*given))
    refused("scales", "nothing", lambda: layer(x, ids, weights, scales=weights))
    refused("out[0]", "memory of its own", lambda: layer(x, ids, weights, out=x))
    scaled = Problem(2, Fp8(2))
    refused("scales", "float32", lambda: scaled.layer()(scaled.x, scaled.ids, scaled.weights))
    wrong = [one[:, :1].copy() for one in scaled.scales or ()]
    refused("scales[0].shape", "(6, 2)", lambda: scaled.layer()(scaled.x, scaled.ids, scaled.weights, scales=wrong))
