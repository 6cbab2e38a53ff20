"""Kernels of any family: of a pack of another crate, and those that come with the package."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import peerwarp
from conftest import random, same_bits
from peerwarp import InvalidArgument, Operation, Pack, World
from peerwarp._arrays import from_bf16


@pytest.fixture(scope="module")
def pack() -> Pack:
    """A pack of the crate `examples/kernels`, with its catalogue."""
    folder = os.environ.get("PEERWARP_TEST_KERNELS")
    if folder is None:
        pytest.skip("PEERWARP_TEST_KERNELS names no pack of examples/kernels")
    return Pack.open(folder)


@pytest.fixture
def ring(pack: Pack) -> Operation:
    return pack.operation("ring_gather", World.simulated(2, seed=3), elements=1000, dtype="f32")


def vectors(ranks: int, elements: int) -> list[np.ndarray]:
    return [random((elements,), "float32", rank) for rank in range(ranks)]


def test_a_pack_says_what_its_families_ask_for(pack: Pack, ring: Operation) -> None:
    assert pack.families["ring_gather"] == ("elements", "ranks", "dtype")
    assert pack.families["ulysses"] == ("tokens", "heads", "dim", "ranks", "dtype")
    assert (ring.family, ring.name.partition("__")[0]) == ("ring_gather", "ring_gather_n1000_r2_f32")
    x, out = ring.parameters
    assert (x.name, x.dtype, x.elements, x.is_output) == ("x", "f32", 1000, False)
    assert (out.name, out.elements, out.is_output) == ("out", 2000, True)


def test_a_ring_gathers_in_every_call(ring: Operation) -> None:
    for call in range(4):
        x = [array + call for array in vectors(2, 1000)]
        out = [np.zeros((2, 1000), np.float32) for _ in x]
        ring(x=x, out=out)
        assert all(same_bits(found, np.stack(x)) for found in out)


@pytest.mark.parametrize("ranks", [2, 4])
def test_tokens_with_all_heads_become_all_tokens_with_some_heads(pack: Pack, ranks: int) -> None:
    transpose = pack.operation("ulysses", World.simulated(ranks), tokens=64, heads=32, dim=128)
    x = [random((64 // ranks, 32, 128), "uint16", rank) for rank in range(ranks)]
    out = [np.zeros((64, 32 // ranks, 128), np.uint16) for _ in x]
    transpose(x=[array.reshape(-1) for array in x], out=[array.reshape(-1) for array in out])
    whole = np.concatenate(x)
    for rank, found in enumerate(out):
        heads = slice(rank * 32 // ranks, (rank + 1) * 32 // ranks)
        assert same_bits(found, np.ascontiguousarray(whole[:, heads]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_histogram_counts_numbers_of_all_ranks(pack: Pack, ranks: int) -> None:
    count = pack.operation("histogram", World.simulated(ranks), numbers=1000, bins=256)
    x = [np.random.default_rng(rank).integers(0, 256, 1000, np.uint32) for rank in range(ranks)]
    out = [np.zeros(256, np.uint32) for _ in x]
    count(x=x, out=out)
    assert all(same_bits(found, np.bincount(np.concatenate(x), minlength=256).astype(np.uint32)) for found in out)


def test_pages_are_pushed_from_pool_to_pool(pack: Pack) -> None:
    world = World.simulated(2)
    push = pack.operation("kv_push", world, page=64, pool=64, requests=4, max_pages=4)
    pool = world.empty((64, 64), "bf16")
    for rank, pages in enumerate(pool):
        pages[:] = random((64, 64), "uint16", rank)
    before = [pages.copy() for pages in pool]
    source, target, count = [0, 1, 0, 1], [1, 0, 1, 1], [4, 2, 0, 1]
    places = {"source_pages": np.arange(16), "target_pages": np.arange(32, 48)}
    plan = {"source": source, "target": target, "pages": count} | places
    arrived = [np.zeros(4, np.uint32) for _ in pool]
    tables = {name: [np.array(table, np.uint32)] * 2 for name, table in plan.items()}
    push(pool=[pages.reshape(-1) for pages in pool], arrived=arrived, **tables)
    for request, pages in enumerate(count):
        for page in range(4 * request, 4 * request + pages):
            before[target[request]][page + 32] = before[source[request]][page]
    assert all(same_bits(found, wanted) for found, wanted in zip(pool, before, strict=True))
    assert [list(there) for there in arrived] == [[0, 2, 0, 0], [4, 0, 0, 1]]


def test_a_product_has_its_bias_gelu_and_largest_elements(pack: Pack) -> None:
    product = pack.operation("matmul_gelu", World.simulated(1), m=40, n=128, k=64)
    x, w, bias = random((40, 64), "uint16", 1), random((128, 64), "uint16", 2), random((128,), "uint16", 3)
    out, most = np.zeros((40, 128), np.uint16), np.zeros(40, np.uint16)
    product(x=[x], w=[w], bias=[bias], out=[out], row_max=[most])
    sums = from_bf16(x) @ from_bf16(w).T + from_bf16(bias)
    wanted = sums * 0.5 * (1 + np.vectorize(math.erf)(sums / math.sqrt(2)))
    assert np.allclose(from_bf16(out), wanted, rtol=2**-7, atol=1e-3)
    assert same_bits(most, out[np.arange(40), from_bf16(out).argmax(1)])


def test_a_family_of_the_package_multiplies_on_one_rank() -> None:
    multiply = peerwarp.operation("matmul", World.simulated(1), m=24, n=40, k=64, dtype="bf16", activation="none")
    x, w = random((24, 64), "uint16", 1), random((40, 64), "uint16", 2)
    out = np.zeros((24, 40), np.uint16)
    multiply(x=[x], w=[w], out=[out])
    wanted = from_bf16(x) @ from_bf16(w).T
    assert np.allclose(from_bf16(out), wanted, rtol=2**-8, atol=1e-3)


def from_e4m3(array: np.ndarray) -> np.ndarray:
    """Bytes of fp8 as float32."""
    exponent, mantissa = array.astype(np.int32) >> 3 & 15, array.astype(np.float32) % 8
    magnitude = np.where(exponent == 0, mantissa / 512, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(array < 128, magnitude, -magnitude).astype(np.float32)


def test_products_of_experts_feed_each_other() -> None:
    """Rows that an index names, gates, fp8 with scales, and the second product of what the first one stored."""
    key = {"groups": 2, "rows": 24, "k": 128, "dtype": "fp8", "scales": "block"}
    first = peerwarp.operation("grouped_matmul", World.simulated(1), n=256, gather=9, activation="swiglu", out="fp8", **key)
    second = peerwarp.operation("grouped_matmul", World.simulated(1), n=128, **key)
    drawn = np.random.default_rng(5)
    x, w, w2 = (drawn.choice(np.array([0, 48, 56, 184], np.uint8), shape) for shape in ((9, 128), (2, 256, 128), (2, 128, 128)))
    index, counts = drawn.integers(0, 9, 24).astype(np.uint32), np.array([13, 11], np.uint32)
    x_scales, w_scales = (drawn.uniform(0.5, 2, n).astype(np.float32) for n in (9, 4))
    out, out_scales = np.zeros((24, 128), np.uint8), np.zeros(24, np.float32)
    first(x=[x], index=[index], counts=[counts], w=[w.reshape(-1)], x_scales=[x_scales], w_scales=[w_scales], out=[out],
          out_scales=[out_scales])  # fmt: skip
    group = np.arange(24) >= 13
    rows = from_e4m3(x)[index] * x_scales[index, None]
    sums = np.where(group[:, None], rows @ from_e4m3(w[1]).T, rows @ from_e4m3(w[0]).T).reshape(24, 8, 2, 16)
    scales = w_scales.reshape(2, 2)[group.astype(int)]
    gate, up = (sums[:, :, part].reshape(24, 128) * scales[:, part, None] for part in (0, 1))
    wanted = gate / (1 + np.exp(-gate)) * up
    assert np.allclose(out_scales, np.abs(wanted).max(1) / 448, rtol=1e-4)
    stored = from_e4m3(out) * out_scales[:, None]
    assert np.all(np.abs(stored - wanted) <= np.abs(wanted) / 14 + out_scales[:, None] / 512)

    result = np.zeros((24, 128), np.uint16)
    second(x=[out], counts=[counts], w=[w2.reshape(-1)], x_scales=[out_scales], w_scales=[np.ones(2, np.float32)], out=[result])
    wanted = np.where(group[:, None], stored @ from_e4m3(w2[1]).T, stored @ from_e4m3(w2[0]).T)
    assert np.allclose(from_bf16(result), wanted, rtol=2**-7, atol=1e-2)


def test_numbers_are_one_for_all_ranks_or_one_each() -> None:
    dispatch = peerwarp.operation("ragged_all_to_all", World.simulated(2), capacity=8, dtype="f32")
    x = [np.arange(16, dtype=np.float32) + 100 * rank for rank in range(2)]
    counts = [np.array([8, 3], np.uint32), np.array([0, 5], np.uint32)]
    out, came = [np.zeros(16, np.float32) for _ in x], [np.zeros(2, np.int32) for _ in x]
    dispatch(x=x, send_counts=counts, out=out, recv_counts=came)
    assert [list(one) for one in came] == [[8, 0], [3, 5]]
    assert same_bits(out[1][:3], x[0][8:11]) and same_bits(out[1][8:13], x[1][8:13])
    assert not out[1][3:8].any(), "places without a sent element keep their values"


def test_a_word_on_the_gpu_says_how_long_a_collective_is() -> None:
    key = {"elements": 4096, "dtype": "f32", "length": "device", "row": 8}
    reduce = peerwarp.operation("all_reduce", World.simulated(2), **key)
    x = [np.arange(800, dtype=np.float32) + 100 * rank for rank in range(2)]
    for n in (60, 0, 1000):
        out, words = [np.full(800, -1, np.float32) for _ in x], [np.array([n], np.uint32)] * 2
        reduce(x=x, rows=100, n=words, out=out)
        there = 8 * min(n, 100)
        for one in out:
            assert same_bits(one[:there], (x[0] + x[1])[:there])
            assert (one[there:] == -1).all()
    long = [np.zeros(8 * 513, np.float32) for _ in x]
    for given, rows, field, allowed in (
        (x, 101, "x[0].shape", "101 rows or more of 8 elements"),
        (long, 513, "rows", "at most 512"),
    ):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            reduce(x=given, rows=rows, n=words, out=[np.zeros_like(one) for one in given])
        assert error.value.field == field
        assert allowed in str(error.value)


def of(pack: Pack, ranks: int = 2, **key: object) -> Operation:
    return pack.operation("ring_gather", World.simulated(ranks), **key)


REFUSED: list[tuple[Callable[[Pack, Operation], object], str, str]] = [
    (lambda pack, _: pack.operation("ring", World.simulated(2)), "family", "histogram, kv_push, matmul_gelu, ring_gather, ulysses"),
    (lambda pack, _: of(pack, element=1), "field of ring_gather", "elements, ranks, dtype"),
    (lambda pack, _: of(pack, dtype="f32"), "elements", "from 1 to 67108864"),
    (lambda pack, _: of(pack, elements="many", dtype="f32"), "elements", "from 1 to 67108864"),
    (lambda pack, _: of(pack, elements=1001, dtype="f32"), "key of ring_gather", "the nearest are ring_gather_n1000_r2_f32"),
    (lambda pack, _: of(pack, ranks=3, elements=1000, dtype="f32"), "key of ring_gather", "the nearest are"),
    (lambda *_: peerwarp.operation("matmull", World.simulated(1)), "family", "matmul"),
    (lambda *_: peerwarp.operation("matmul", World.simulated(1), m=0, n=8, k=8, dtype="bf16"), "m", "from 1 to 1048576"),
    (lambda _, ring: ring(x=vectors(2, 1000)), "out", "x, out"),
    (lambda _, ring: ring(x=vectors(2, 1000), out=vectors(2, 2000), n=1), "parameter", "x, out"),
    (lambda _, ring: ring(x=vectors(2, 999), out=vectors(2, 2000)), "x[0].shape", "1000 elements"),
    (lambda _, ring: ring(x=vectors(3, 1000), out=vectors(2, 2000)), "x", "2, one for each rank"),
    (lambda _, ring: ring(x=[np.zeros(1000)] * 2, out=vectors(2, 2000)), "x[0].dtype", "float32"),
    (lambda _, ring: ring(x=vectors(2, 1000), out=[np.zeros(2000, np.float32)] * 2), "out[1]", "memory of its own"),
    (lambda _, ring: ring(x=vectors(2, 1000), out=[one[::2] for one in vectors(2, 4000)]), "out[0].strides", "contiguous"),
    (lambda _, ring: ring(x=1.0, out=vectors(2, 2000)), "x", "a list of 2 arrays"),
]


@pytest.mark.parametrize(("call", "field", "allowed"), REFUSED, ids=[field for _, field, _ in REFUSED])
def test_what_does_not_fit_is_named(
    pack: Pack, ring: Operation, call: Callable[[Pack, Operation], object], field: str, allowed: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        call(pack, ring)
    assert refused.value.field == field
    assert allowed in refused.value.allowed


def test_outputs_may_not_be_inputs(ring: Operation) -> None:
    both = vectors(2, 3000)
    with pytest.raises(InvalidArgument, match=r"out\[0\] = memory of x"):
        ring(x=[one[:1000] for one in both], out=[one[500:2500] for one in both])


def test_a_pack_without_kernels_of_its_families_says_so() -> None:
    folder = os.environ.get("PEERWARP_TEST_PACK", str(Path(__file__).parents[2] / "tests/data/pack"))
    with pytest.raises(InvalidArgument) as refused:
        Pack.open(folder).operation("scale", World.simulated(2), n=8)
    assert refused.value.field == "family"
