"""Collectives: to the bit what NumPy computes in the order of ranks."""

from __future__ import annotations

import numpy as np
import pytest

import peerwarp
from conftest import random, reduced, same_bits

DTYPES = ["float32", "float16", "uint16"]


def inputs(world: peerwarp.World, shape: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    return [random(shape, dtype, seed) for seed in range(world.ranks)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_all_reduce(world: peerwarp.World, dtype: str, op: str) -> None:
    x = inputs(world, (5, 7), dtype)
    for found in peerwarp.Collectives(world).all_reduce(x, op):
        assert same_bits(found, reduced(x, op))


@pytest.mark.parametrize("op", ["max", "min", "max-nan", "min-nan"])
def test_nan(world: peerwarp.World, op: str) -> None:
    x = inputs(world, (5, 7))
    x[1][0] = x[0][2, :3] = np.nan
    for array in x:
        array[4, 4:] = np.nan
    for found in peerwarp.Collectives(world).all_reduce(x, op):
        np.testing.assert_array_equal(found, reduced(x, op))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_integers_are_reduced(world: peerwarp.World, op: str) -> None:
    random = np.random.default_rng(5)
    x = [random.integers(-(2**31), 2**31, (6, 7), np.int32) for _ in range(world.ranks)]
    act = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    wanted = act.reduce(x, dtype=np.int32)
    for found in peerwarp.Collectives(world).all_reduce(x, op):
        assert same_bits(found, wanted)
    found = peerwarp.Collectives(world).reduce_scatter(x, op)
    assert same_bits(np.concatenate(found), wanted)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_integers_are_moved(world: peerwarp.World, dtype: type) -> None:
    random = np.random.default_rng(5)
    x = [random.integers(0, 256, (6, 7)).astype(dtype) - dtype(1) for _ in range(world.ranks)]
    collectives = peerwarp.Collectives(world)
    assert same_bits(collectives.all_gather(x)[1], np.concatenate(x))
    assert same_bits(collectives.broadcast(x, root=1)[0], x[1])
    assert same_bits(collectives.all_to_all(x)[0], np.concatenate([np.split(one, world.ranks)[0] for one in x]))


def test_all_reduce_of_two_shots() -> None:
    world = peerwarp.World.simulated(4)
    x = inputs(world, (150_001,))
    assert same_bits(peerwarp.Collectives(world).all_reduce(x)[3], reduced(x, "sum"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_scatter(world: peerwarp.World, dtype: str) -> None:
    x = inputs(world, (4 * world.ranks, 3), dtype)
    parts = np.split(reduced(x, "max"), world.ranks)
    for found, wanted in zip(peerwarp.Collectives(world).reduce_scatter(x, "max"), parts, strict=True):
        assert same_bits(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather(world: peerwarp.World, dtype: str) -> None:
    x = inputs(world, (3, 5), dtype)
    for found in peerwarp.Collectives(world).all_gather(x):
        assert same_bits(found, np.concatenate(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_to_all(world: peerwarp.World, dtype: str) -> None:
    x = inputs(world, (2 * world.ranks, 9), dtype)
    parts = [np.split(array, world.ranks) for array in x]
    for rank, found in enumerate(peerwarp.Collectives(world).all_to_all(x)):
        assert same_bits(found, np.concatenate([part[rank] for part in parts]))


def test_one_rank_copies() -> None:
    collectives = peerwarp.Collectives(peerwarp.World.simulated(1))
    x = inputs(peerwarp.World.simulated(1), (6, 5))
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
        (found,) = getattr(collectives, name)(x)
        assert same_bits(found, x[0]), name


def test_broadcast(world: peerwarp.World) -> None:
    x = inputs(world, (33,))
    for found in peerwarp.Collectives(world).broadcast(x, root=1):
        assert same_bits(found, x[1])


def test_results_go_to_out_which_has_no_memory_of_the_inputs(world: peerwarp.World) -> None:
    x = inputs(world, (12,))
    wanted = reduced(x, "sum")
    given = [np.empty_like(one) for one in x]
    out = peerwarp.Collectives(world).all_reduce(x, out=given)
    assert all(one is given for one, given in zip(out, given, strict=True))
    assert all(same_bits(one, wanted) for one in out)
    for same in (x, [x[1], *given[1:]]):
        with pytest.raises(peerwarp.InvalidArgument, match="memory of x") as error:
            peerwarp.Collectives(world).all_reduce(x, out=same)
        assert error.value.field == "out[0]"


def test_no_elements_are_no_work(world: peerwarp.World) -> None:
    collectives = peerwarp.Collectives(world)
    x = [np.empty((0, 3), np.float16)] * world.ranks
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
        assert [one.shape for one in getattr(collectives, name)(x)] == [(0, 3)] * world.ranks, name
    found = collectives.all_gather(x, sizes=[0] * world.ranks)
    assert [(one.shape, one.dtype) for one in found] == [((0, 3), np.float16)] * world.ranks


SIZES = [[3, 0, 7], [0, 1, 0], [130, 257, 64], [1, 1, 1]]


@pytest.mark.parametrize("dtype", [*DTYPES, "int32", "uint8"])
def test_ranks_gather_arrays_of_lengths_of_their_own(world: peerwarp.World, dtype: str) -> None:
    collectives = peerwarp.Collectives(world)
    for sizes in SIZES:
        sizes = sizes[: world.ranks]
        drawn = [random((size, 5), dtype if dtype in DTYPES else "float32", rank) for rank, size in enumerate(sizes)]
        x = drawn if dtype in DTYPES else [(9 * one).astype(dtype) for one in drawn]
        for found in collectives.all_gather(x, sizes=sizes):
            assert same_bits(found, np.concatenate(x))
    collectives.free()
    assert collectives.memory_bytes == 0
    assert same_bits(collectives.all_gather(x, sizes=sizes)[1], np.concatenate(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_get_parts_of_lengths_of_their_own(world: peerwarp.World, dtype: str) -> None:
    collectives = peerwarp.Collectives(world)
    for sizes in SIZES:
        sizes = sizes[: world.ranks]
        x = inputs(world, (sum(sizes), 4), dtype)
        wanted = np.split(reduced(x, "max"), np.cumsum(sizes)[:-1])
        out = [np.empty_like(one) for one in wanted]
        found = collectives.reduce_scatter(x, "max", sizes=sizes, out=out)
        assert all(one is given for one, given in zip(found, out, strict=True))
        assert all(same_bits(one, want) for one, want in zip(found, wanted, strict=True))


def test_calls_follow_each_other_in_other_epochs_and_schedules(world: peerwarp.World) -> None:
    collectives = peerwarp.Collectives(world)
    for seed in range(4):
        x = [random((40,), "float32", 10 * seed + rank) for rank in range(world.ranks)]
        assert same_bits(collectives.all_reduce(x)[0], reduced(x, "sum"))


def test_bfloat16_of_ml_dtypes(world: peerwarp.World) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = [random((6,), "float32", rank).astype(ml_dtypes.bfloat16) for rank in range(world.ranks)]
    found = peerwarp.Collectives(world).all_reduce(x)[0]
    assert found.dtype == x[0].dtype
    assert same_bits(found.view(np.uint16), reduced([one.view(np.uint16) for one in x], "sum"))


class Foreign:
    """Another library's array: DLPack, and nothing else of NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **arguments: object) -> object:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries_come_by_dlpack(world: peerwarp.World) -> None:
    x = inputs(world, (8,))
    found = peerwarp.Collectives(world).all_gather([Foreign(array) for array in x])
    assert same_bits(found[0], np.concatenate(x))


class OnAGpu(Foreign):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **arguments: object) -> object:
        raise BufferError("memory of a GPU")


ones = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("x", "field"),
    [
        (ones, "x"),
        ("text", "x"),
        ([ones], "x"),
        ([ones, [1.0]], "x[1]"),
        ([ones, OnAGpu(ones)], "x[1]"),
        ([ones, ones.astype(np.float16)], "x[1].dtype"),
        ([ones.astype(np.float64)] * 2, "x[0].dtype"),
        ([ones.astype(">f4")] * 2, "x[0].dtype"),
        ([ones, ones[:3]], "x[1].shape"),
        ([ones, np.ones(8, np.float32)[::2]], "x[1].strides"),
        ([ones.astype(np.uint8)] * 2, "x[0].dtype"),
    ],
)
def test_inputs_that_are_refused(x: object, field: str) -> None:
    collectives = peerwarp.Collectives(peerwarp.World.simulated(2))
    with pytest.raises(peerwarp.InvalidArgument) as error:
        collectives.all_reduce(x)
    assert error.value.field == field
    assert error.value.allowed


def test_other_arguments_that_are_refused() -> None:
    world = peerwarp.World.simulated(2)
    collectives = peerwarp.Collectives(world)
    odd = [np.ones(3, np.float32)] * 2
    read_only = ones.copy()
    read_only.flags.writeable = False
    cases = [
        (lambda: collectives.all_reduce([ones] * 2, "mean"), "op"),
        (lambda: collectives.broadcast([ones] * 2, root=2), "root"),
        (lambda: collectives.broadcast([ones] * 2, root=True), "root"),
        (lambda: collectives.reduce_scatter(odd), "x[0].shape"),
        (lambda: collectives.all_to_all(odd), "x[0].shape"),
        (lambda: collectives.all_gather([np.zeros((), np.float32)] * 2), "x[0].shape"),
        (lambda: collectives.all_gather([ones] * 2, sizes=[4]), "sizes"),
        (lambda: collectives.all_gather([ones] * 2, sizes=4), "sizes"),
        (lambda: collectives.all_gather([ones] * 2, sizes=[4, -1]), "sizes[1]"),
        (lambda: collectives.all_gather([ones] * 2, sizes=[4, 3]), "x[1].shape"),
        (lambda: collectives.all_gather([ones] * 2, sizes=[4, 4], max_size=3), "max_size"),
        (lambda: collectives.reduce_scatter([ones] * 2, sizes=[4, 1]), "x[0].shape"),
        (lambda: collectives.reduce_scatter([ones] * 2, "mean", sizes=[4, 0]), "op"),
        (lambda: peerwarp.Collectives(world, capacities=[8, 8]), "capacities"),
        (lambda: peerwarp.Collectives(world, capacities=[]), "capacities"),
        (lambda: peerwarp.Collectives(world, capacities=[0]), "capacities[0]"),
        (lambda: collectives.all_reduce([ones] * 2, out=[ones.copy()]), "out"),
        (lambda: collectives.all_reduce([ones] * 2, out=[ones.copy(), ones[:2].copy()]), "out[1].shape"),
        (lambda: collectives.all_reduce([ones] * 2, out=[ones.copy(), read_only]), "out[1]"),
        (lambda: collectives.all_reduce([ones] * 2, out=[ones] * 2), "out[1]"),
        (lambda: peerwarp.Collectives("world"), "world"),
        (lambda: peerwarp.World.simulated(0), "ranks"),
        (lambda: peerwarp.World.simulated(2, check_races="no"), "check_races"),
        (lambda: peerwarp.World.simulated(65), "ranks"),
        (lambda: peerwarp.World.simulated(2.5), "ranks"),
        (lambda: peerwarp.World.simulated(2, seed=-1), "seed"),
    ]
    for call, field in cases:
        with pytest.raises(peerwarp.InvalidArgument) as error:
            call()
        assert error.value.field == field


def test_memory_that_there_is_not_is_reported_before_it_is_taken() -> None:
    collectives = peerwarp.Collectives(peerwarp.World.simulated(2))
    # The core is asked, as no caller here has such arrays.
    with pytest.raises(peerwarp.InvalidArgument) as error:
        collectives._core.run("all_reduce", ("sum", 0), ("f32", 2**40), [b"", b""])
    assert error.value.field == "elements"
