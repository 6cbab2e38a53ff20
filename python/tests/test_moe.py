"""MoE dispatch and combine: to the bit what NumPy computes in the kernels' order."""

from __future__ import annotations

import numpy as np
import pytest

import peerwarp
from conftest import narrow, random, same_bits, wide
from peerwarp._arrays import from_bf16, to_bf16

HIDDEN, EXPERTS, TOPK, TOKENS = 24, 7, 3, 5


class Problem:
    """Tokens of ranks that have different numbers of them, with masked and repeated ids."""

    def __init__(self, ranks: int, dtype: str, topk: int = TOPK) -> None:
        rng = np.random.default_rng(ranks)
        counts = [TOKENS, 0, 3, 1][:ranks]
        self.x = [random((n, HIDDEN), dtype, rank) for rank, n in enumerate(counts)]
        self.ids = [rng.integers(-1, EXPERTS, (n, topk), dtype=np.int32) for n in counts]
        self.ids[0][0] = 4  # the same expert for all entries
        self.ids[0][1] = -1  # no expert
        self.weights = [rng.random((n, topk), dtype=np.float32) for n in counts]

    def dispatch(self, moe: peerwarp.MoeAllToAll) -> peerwarp.Dispatched:
        return moe.dispatch(self.x, self.ids, self.weights)


def operation(world: peerwarp.World, layout: str = "rank_major", **others: object) -> peerwarp.MoeAllToAll:
    arguments = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "max_tokens": TOKENS, "layout": layout} | others
    return peerwarp.MoeAllToAll(world, **arguments)


def owned(ranks: int, rank: int) -> range:
    """The experts of a rank."""
    each, more = divmod(EXPERTS, ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


def expert(number: int, rows: np.ndarray) -> np.ndarray:
    """A stand-in for an expert, in float32."""
    return rows * np.float32(number + 1) - np.float32(0.25)


def summed(d: peerwarp.Dispatched, rank: int, dtype: np.dtype) -> np.ndarray:
    """What a rank's experts make of its rows: weighted and summed in the order of k, rounded once."""
    rows = wide(d.rows[rank])
    y = np.zeros_like(rows)
    for k in range(d.ids[rank].shape[1]):
        for place in np.flatnonzero(d.ids[rank][:, k] >= 0):
            y[place] += d.weights[rank][place, k] * expert(int(d.ids[rank][place, k]), rows[place])
    return narrow(y, dtype)


def gathered(y: list[np.ndarray], problem: Problem, source: int) -> np.ndarray:
    """The sum of what each owner made of a source's tokens: in float32, in the order of ranks, rounded once."""
    out = np.zeros(problem.x[source].shape, np.float32)
    for token, ids in enumerate(problem.ids[source]):
        parts = [wide(y[rank][source * TOKENS + token]) for rank in range(len(y)) if np.isin(ids, list(owned(len(y), rank))).any()]
        for at, part in enumerate(parts):
            out[token] = part if at == 0 else out[token] + part
    return narrow(out, y[source].dtype)


@pytest.mark.parametrize("dtype", ["uint16", "float16"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rank_major_rows_come_where_they_belong_and_go_home(ranks: int, dtype: str) -> None:
    world = peerwarp.World.simulated(ranks, seed=3)
    moe = operation(world, dtype="bf16" if dtype == "uint16" else "fp16")
    problem = Problem(ranks, dtype)
    d = problem.dispatch(moe)
    assert [int(n) for n in d.tokens_from[0]] == [len(x) for x in problem.x]
    for rank in range(ranks):
        check_rank_major(problem, d, rank, ranks)
    y = [summed(d, rank, problem.x[0].dtype) for rank in range(ranks)]
    for source, found in enumerate(moe.combine(d, y)):
        assert same_bits(found, gathered(y, problem, source))


def check_rank_major(problem: Problem, d: peerwarp.Dispatched, rank: int, ranks: int) -> None:
    """Rows, ids, weights and the index of a rank."""
    assert d.rows[rank].shape == (ranks * TOKENS, HIDDEN)
    own = owned(ranks, rank)
    assert d.first_expert[rank] == own.start
    places: dict[int, list[int]] = {number: [] for number in own}
    for source in range(ranks):
        for token in range(TOKENS):
            place = source * TOKENS + token
            there = token < len(problem.x[source])
            ids = problem.ids[source][token] if there else np.full(TOPK, -1, np.int32)
            mine = np.isin(ids, list(own))
            assert np.array_equal(d.ids[rank][place], np.where(mine, ids, -1))
            weights = problem.weights[source][token] if there else np.zeros(TOPK, np.float32)
            assert np.array_equal(d.weights[rank][place], np.where(mine, weights, np.float32(0)))
            wanted = problem.x[source][token] if mine.any() else np.zeros(HIDDEN, problem.x[0].dtype)
            assert same_bits(d.rows[rank][place], wanted)
            for number in ids[mine]:
                places[int(number)].append(place)
    assert [int(n) for n in d.expert_rows[rank]] == [len(places[number]) for number in own]
    assert d.gather[rank].tolist() == [place for number in own for place in places[number]]
    assert d.expert_start[rank].tolist() == [0, *np.cumsum(d.expert_rows[rank]).tolist()]


def test_a_smaller_capacity_brings_the_same_to_fewer_places() -> None:
    world = peerwarp.World.simulated(2)
    moe = operation(world, max_tokens=9, capacities=[3, TOKENS], empty_id=EXPERTS)
    assert (moe.capacities, moe.memory_bytes, moe.kernels) == ((3, TOKENS, 9), (), ())
    problem = Problem(2, "uint16")
    sent = (problem.x, problem.ids, problem.weights)
    small, large = moe.dispatch(*sent, max_tokens=4), moe.dispatch(*sent)
    for rank in range(2):
        assert (len(small.rows[rank]), len(large.rows[rank])) == (2 * TOKENS, 2 * 9)
        for source in range(2):
            few, many = slice(source * TOKENS, (source + 1) * TOKENS), slice(source * 9, source * 9 + TOKENS)
            assert same_bits(small.rows[rank][few], large.rows[rank][many])
            assert np.array_equal(small.ids[rank][few], large.ids[rank][many])
        assert set(np.unique(small.ids[rank])) <= {*owned(2, rank), EXPERTS}
        assert np.array_equal(small.weights[rank] == 0, small.ids[rank] == EXPERTS)
    # Each is combined in its own places.
    bits = [small.rows, large.rows]
    assert all(same_bits(a, b) for a, b in zip(moe.combine(small, bits[0]), moe.combine(large, bits[1]), strict=True))
    for field, arguments in (
        ("capacities[1]", {"capacities": [3, 3]}),
        ("capacities[0]", {"capacities": [TOKENS + 1]}),
        ("empty_id", {"empty_id": 0}),
        ("sms", {"sms": 0}),
    ):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            operation(world, **arguments)
        assert error.value.field == field
    with pytest.raises(peerwarp.InvalidArgument, match="at most 9, the largest capacity"):
        moe.dispatch(*sent, max_tokens=10)
    with pytest.raises(peerwarp.InvalidArgument, match="at most 3 rows"):
        moe.dispatch(*sent, max_tokens=3)


def test_the_former_name_of_the_empty_id_is_accepted_with_a_warning() -> None:
    world = peerwarp.World.simulated(2)
    with pytest.warns(DeprecationWarning, match="is called empty_id"):
        old = operation(world, **{"nobody": EXPERTS})
    new, problem = operation(world, empty_id=EXPERTS), Problem(2, "uint16")
    for few, many in zip(problem.dispatch(old).ids, problem.dispatch(new).ids, strict=True):
        assert np.array_equal(few, many) and EXPERTS in few
    with pytest.warns(DeprecationWarning), pytest.raises(peerwarp.InvalidArgument, match="empty_id = 0: "):
        operation(world, **{"nobody": 0})
    with pytest.raises(TypeError, match="unexpected keyword argument 'empty'"):
        operation(world, empty=-1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_expert_major_rows_are_sorted_by_expert_weighted_and_summed(ranks: int) -> None:
    world = peerwarp.World.simulated(ranks)
    moe = operation(world, "expert_major")
    problem = Problem(ranks, "float32")
    # Small integers and weights of one half: nothing is rounded, in whatever order it is added.
    problem.x = [np.clip(np.round(x * 2), -7, 7) for x in problem.x]
    problem.weights = [np.full_like(w, 0.5) for w in problem.weights]
    d = problem.dispatch(moe)
    assert (d.ids, d.weights, d.gather, d.scales) == ([], [], [], [])
    y = []
    for rank in range(ranks):
        rows, numbers = [], []
        for number in owned(ranks, rank):
            for source in range(ranks):
                tokens = np.nonzero(problem.ids[source] == number)[0]
                rows.extend(problem.x[source][tokens])
                numbers.extend([number] * len(tokens))
        assert same_bits(d.rows[rank], np.array(rows, np.float32).reshape(-1, HIDDEN))
        assert np.array_equal(d.expert_rows[rank], [numbers.count(number) for number in owned(ranks, rank)])
        assert int(d.expert_start[rank][-1]) == len(rows)
        y.append(d.rows[rank] * (np.array(numbers, np.float32).reshape(-1, 1) + 1))
    for found, x, ids in zip(moe.combine(d, y), problem.x, problem.ids, strict=True):
        factor = np.where(ids >= 0, 0.5 * (ids + 1), 0).sum(axis=1, keepdims=True)
        assert same_bits(found, (x * factor).astype(np.float32) + np.float32(0))


def test_float32_is_rounded_to_bfloat16() -> None:
    world = peerwarp.World.simulated(2)
    moe = operation(world)
    problem = Problem(2, "float32")
    d = problem.dispatch(moe)
    assert d.rows[0].dtype == np.float32
    rounded = [from_bf16(to_bf16(x)) for x in problem.x]
    place = int(d.gather[0][0])
    assert same_bits(d.rows[0][place], rounded[place // TOKENS][place % TOKENS])
    out = [np.empty_like(x) for x in problem.x]
    assert moe.combine(d, d.rows, out=out)[0] is out[0]
    assert same_bits(out[0], from_bf16(to_bf16(out[0])))


def test_fp8_rows_come_with_their_scales() -> None:
    world = peerwarp.World.simulated(2)
    moe = operation(world, dtype="fp8")
    problem = Problem(2, "float32")
    rng = np.random.default_rng(5)
    problem.x = [rng.integers(0, 120, x.shape, dtype=np.uint8) for x in problem.x]
    scales = [rng.random((len(x), 1), dtype=np.float32) for x in problem.x]
    d = moe.dispatch(problem.x, problem.ids, problem.weights, scales=scales)
    place = int(d.gather[1][0])
    source, token = divmod(place, TOKENS)
    assert same_bits(d.rows[1][place], problem.x[source][token])
    assert same_bits(d.scales[1][place], scales[source][token])
    out = moe.combine(d, [np.zeros(rows.shape, np.uint16) for rows in d.rows])
    assert not out[0].any()


@pytest.mark.parametrize("dtype", ["fp8-ue8m0", "fp8-token", "fp8-tensor", "fp8-fnuz", "int8", "mxfp8", "nvfp4", "mxfp4", "bytes"])
@pytest.mark.parametrize("layout", ["rank_major", "expert_major"])
def test_rows_that_are_bytes_come_with_all_of_their_scales(layout: str, dtype: str) -> None:
    hidden = 256
    world = peerwarp.World.simulated(2)
    sizes = {"row_bytes": 1028, "scale_bytes": 36} if dtype == "bytes" else {}
    moe = operation(world, layout, dtype=dtype, hidden=hidden, combined="fp16", **sizes)
    problem, rng = Problem(2, "float32"), np.random.default_rng(7)
    row = sizes.get("row_bytes", hidden // 2 if dtype.endswith("4") else hidden)
    blocks = {"mxfp8": 32, "nvfp4": 16, "mxfp4": 32, "fp8-fnuz": 128}
    widths = {"fp8-ue8m0": 4, "fp8-token": 1, "int8": 1, "fp8-tensor": 0, "bytes": 36}
    width = widths[dtype] if dtype in widths else hidden // blocks[dtype]
    # All bytes there are, and whole rows of ones: no code takes them for numbers. Of 8-bit floats, those that are some.
    problem.x = [rng.integers(0, 256, (len(x), row), dtype=np.uint8) for x in problem.x]
    scales = [rng.integers(0, 256, (len(x), width), dtype=np.uint8) for x in problem.x]
    if dtype in ("fp8-token", "fp8-tensor"):
        problem.x = [one & 0xFE for one in problem.x]
    else:
        for one in (*problem.x, *scales):
            one[2::2] = 0xFF
    if dtype in ("fp8-token", "fp8-fnuz", "int8"):
        scales = [one.astype(np.float32) for one in scales]
    given = {"scales": scales} if width else {}
    d = moe.dispatch(problem.x, problem.ids, problem.weights, **given)
    assert len(d.scales) == (2 if width else 0)
    for rank in range(2):
        assert d.rows[rank].shape[1] == row
        came = [(s, t, e) for e in owned(2, rank) for s in range(2) for t, k in zip(*np.nonzero(problem.ids[s] == e), strict=True)]
        assert len(came) == int(d.expert_rows[rank].sum()) > 0
        places = d.gather[rank] if layout == "rank_major" else range(len(came))
        for place, (source, token, _) in zip(places, came, strict=True):
            assert same_bits(d.rows[rank][place], problem.x[source][token])
            assert not width or same_bits(d.scales[rank][place], scales[source][token])
    out = moe.combine(d, [np.ones((len(rows), hidden), np.float16) for rows in d.rows])
    assert [(one.shape, one.dtype) for one in out] == [((len(x), hidden), np.float16) for x in problem.x]
    if layout == "expert_major":
        # Each entry that is an expert's adds its weight.
        total = [np.where(ids >= 0, w, 0).sum(1) for ids, w in zip(problem.ids, problem.weights, strict=True)]
        assert all(np.allclose(one[:, 0], wanted, rtol=2e-3) for one, wanted in zip(out, total, strict=True))
    wrong = [one[:, :0] for one in scales] if width else scales
    with pytest.raises(peerwarp.InvalidArgument) as error:
        moe.dispatch(problem.x, problem.ids, problem.weights, scales=wrong)
    assert error.value.field == ("scales[0].shape" if width else "scales")


@pytest.mark.parametrize("layout", ["rank_major", "expert_major"])
@pytest.mark.parametrize(("dtype", "combined"), [("fp8", "bf16"), ("mxfp8", "fp16")])
def test_rows_are_quantised_on_their_way(layout: str, dtype: str, combined: str) -> None:
    hidden, block = 384, 128 if dtype == "fp8" else 32
    world = peerwarp.World.simulated(2)
    moe = operation(world, layout, dtype=dtype, hidden=hidden, combined=combined, quantise=True)
    problem = Problem(2, "float32")
    # Powers of two, which both types and e4m3 hold; the last block is zeros.
    exponents = np.arange(hidden) % 9 - 4
    row = np.ldexp(np.float32(1), exponents).astype(np.float32)
    row[-block:] = 0
    kind = np.float16 if combined == "fp16" else np.float32
    x = [np.tile(row, (len(one), 1)).astype(kind) for one in problem.x]
    d = moe.dispatch(x, problem.ids, problem.weights)
    came = d.gather[0] if layout == "rank_major" else range(int(d.expert_rows[0].sum()))
    assert len(came) > 0
    for place in came:
        scales = d.scales[0][place]
        if dtype == "fp8":
            assert scales.dtype == np.float32 and scales.tolist() == [np.float32(16) / np.float32(448)] * 2 + [1.0]
        else:
            # The largest is 2^4, of e4m3's 2^8.
            assert scales.dtype == np.uint8 and scales.tolist() == [127 + 4 - 8] * 11 + [127]
            # 2^e is 2^(e + 4) once scaled, whose e4m3 byte has the exponent e + 4 + 7.
            wanted = np.where(row > 0, (exponents + 4 + 7) << 3, 0).astype(np.uint8)
            assert same_bits(d.rows[0][place], wanted)
    out = moe.combine(d, [np.ones((len(rows), hidden), kind) for rows in d.rows])
    assert [len(one) for one in out] == [len(one) for one in x]
    for arguments, field in (({"scales": x}, "scales"), ({}, "x[0].dtype")):
        given = x if arguments else [one.astype(np.uint8) for one in x]
        with pytest.raises(peerwarp.InvalidArgument) as error:
            moe.dispatch(given, problem.ids, problem.weights, **arguments)
        assert error.value.field == field


@pytest.mark.parametrize("layout", ["rank_major", "expert_major", "expert_strided"])
@pytest.mark.parametrize(
    ("dtype", "order", "kind"),
    [("fp8", "column", np.float32), ("fp8-ue8m0", "column", np.int32), ("mxfp8", "128x4", np.uint8)],
)
def test_scales_stand_in_the_order_that_is_asked_for(layout: str, dtype: str, order: str, kind: type) -> None:
    hidden, world = 1152, peerwarp.World.simulated(2)
    problem = Problem(2, "float32")
    rng = np.random.default_rng(3)
    x = [rng.standard_normal((len(one), hidden), dtype=np.float32) for one in problem.x]
    rounding = {} if dtype == "fp8" else {"scale_rounding": "up"}
    made = [
        operation(world, layout, dtype=dtype, hidden=hidden, quantise=True, scale_layout=one, **rounding).dispatch(
            x, problem.ids, problem.weights
        )
        for one in ("row", order)
    ]
    for rank in range(2):
        by_row, ordered = made[0].scales[rank], made[1].scales[rank]
        assert ordered.dtype == kind and same_bits(made[0].rows[rank], made[1].rows[rank])
        words = by_row.view(np.uint32).reshape(len(by_row), -1)
        starts, counts = made[0].expert_start[rank], made[0].expert_rows[rank]
        if layout == "rank_major":
            came = [(None, int(place)) for place in made[0].gather[rank]]
        else:
            came = [(e, int(starts[e]) + i) for e in range(len(counts)) for i in range(int(counts[e]))]
        assert came
        for expert, place in came:
            matrix, row = (ordered, place) if layout != "expert_strided" else (ordered[expert], place - int(starts[expert]))
            if order == "column":
                found = np.ascontiguousarray(matrix[row]).view(np.uint32)
                assert matrix.strides[0] == 4 and matrix.strides[1] % 16 == 0
            else:
                tiles = np.ascontiguousarray(matrix).view(np.uint32).reshape(-1, words.shape[1], 32, 4)
                found = tiles[row // 128, :, row % 32, row // 32 % 4]
            assert same_bits(found, words[place])


def rounded(library: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of float32 values as a library rounds them to a type of a byte, or of four bits, one to a byte."""
    if library == "torch":
        torch = pytest.importorskip("torch")
        return torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.uint8).numpy()
    return values.astype(getattr(pytest.importorskip("ml_dtypes"), dtype)).view(np.uint8)


@pytest.mark.parametrize("library", ["ml_dtypes", "torch"])
@pytest.mark.parametrize("dtype", ["fp8", "fp8-ue8m0", "fp8-fnuz", "mxfp8", "int8", "nvfp4"])
def test_rows_are_quantised_as_another_library_rounds(dtype: str, library: str) -> None:
    hidden, world, all_rows = 512, peerwarp.World.simulated(2), np.float32(0.01)
    powers = dtype in ("fp8-ue8m0", "mxfp8")
    moe = operation(world, dtype=dtype, hidden=hidden, combined="fp16", quantise=True, scale_rounding="up" if powers else "floor")
    problem, rng = Problem(2, "float32"), np.random.default_rng(11)
    x = [rng.standard_normal((len(one), hidden), dtype=np.float32).astype(np.float16) for one in problem.x]
    given = {"scales": [np.full((1, 1), all_rows)] * 2} if dtype == "nvfp4" else {}
    d = moe.dispatch(x, problem.ids, problem.weights, **given)
    blocks = np.concatenate(x).astype(np.float32).reshape(-1, {"int8": hidden, "mxfp8": 32, "nvfp4": 16}.get(dtype, 128))
    largest = np.abs(blocks).max(1, keepdims=True)
    if dtype == "int8":
        scales = largest / np.float32(127)
        rows, found = np.rint(blocks / scales).astype(np.int8).view(np.uint8), scales
    elif dtype == "nvfp4":
        found = rounded(library, largest / np.float32(6) / all_rows, "float8_e4m3fn")
        scales = pytest.importorskip("ml_dtypes").float8_e4m3fn
        four = rounded("ml_dtypes", blocks / (found.view(scales).astype(np.float32) * all_rows), "float4_e2m1fn")
        rows = four[:, ::2] | four[:, 1::2] << 4
    elif powers:
        exponents = np.ceil(np.log2(largest.astype(np.float64) / 448)).astype(np.int32)
        rows = rounded(library, np.ldexp(blocks, -exponents), "float8_e4m3fn")
        found = (exponents + 127).astype(np.uint8)
    else:
        most, name = (224, "float8_e4m3fnuz") if dtype == "fp8-fnuz" else (448, "float8_e4m3fn")
        found = largest / np.float32(most)
        rows = rounded(library, blocks / found, name)
    rows, found = rows.reshape(sum(map(len, x)), -1), found.reshape(sum(map(len, x)), -1)
    for place in d.gather[0]:
        source, token = divmod(int(place), TOKENS)
        row = token + source * len(x[0])
        assert same_bits(d.rows[0][place], rows[row])
        assert same_bits(d.scales[0][place], found[row])


def test_rows_are_quantised_to_nvfp4_by_the_scale_of_all() -> None:
    hidden, world = 64, peerwarp.World.simulated(2)
    moe = operation(world, dtype="nvfp4", hidden=hidden, quantise=True)
    problem = Problem(2, "float32")
    # The largest of a block over 6, and over the scale of all rows, is the block's own: 4.
    row = np.tile(np.array([12, 1, -6, 2] * 4, np.float32), hidden // 16)
    x = [np.tile(row, (len(one), 1)) for one in problem.x]
    d = moe.dispatch(x, problem.ids, problem.weights, scales=[np.array([[0.5]], np.float32)] * 2)
    place = int(d.gather[0][0])
    # 12 / 2 is 6, 1 / 2 a half, -6 / 2 is -3, and 2 / 2 is 1.
    assert d.scales[0][place].tolist() == [0x48] * 4
    assert d.rows[0][place].tolist() == [0x17, 0x2D] * (hidden // 4)
    for scales, field in ((None, "scales"), ([np.ones((1,), np.float32)] * 2, "scales[0].shape")):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            moe.dispatch(x, problem.ids, problem.weights, scales=scales)
        assert error.value.field == field


@pytest.mark.parametrize("layout", ["rank_major", "expert_major"])
@pytest.mark.parametrize(("combine_dtype", "block"), [("fp8", 128), ("fp8-token", 384)])
def test_rows_come_back_as_fp8(layout: str, combine_dtype: str, block: int) -> None:
    hidden = 384
    sizes = {"hidden": hidden, "topk": 1, "weighted": layout == "rank_major"}
    moe = operation(peerwarp.World.simulated(2), layout, combine_dtype=combine_dtype, **sizes)
    # One expert a token, on the other rank: each row comes back as it is, times a weight of one.
    ids = [np.full((2, 1), EXPERTS - 1, np.int32), np.zeros((2, 1), np.int32)]
    weights = [np.ones((2, 1), np.float32)] * 2
    row = np.ones(hidden, np.float32)
    # 448 is the largest e4m3 number, and 1.0625 lies between 1 and 1.125: a tie goes to the even one.
    row[0], row[1], row[-1] = 448, 1.0625, 1.0625
    d = moe.dispatch([np.zeros((2, hidden), np.float32)] * 2, ids, weights)
    out = moe.combine(d, [np.tile(row, (len(rows), 1)) for rows in d.rows])
    wanted = row.copy()
    wanted[1] = 1
    if block == hidden:
        wanted[-1] = 1
        assert same_bits(out[0], np.tile(wanted, (2, 1)))
    else:
        # The last block's scale is its own.
        assert np.abs(out[0] - wanted).max() <= 1.0625 / 16
        assert out[0][0, 0] == 448
        assert out[0][0, 1] == 1


@pytest.mark.parametrize("align", [8, 16, 128])
def test_experts_rows_begin_at_multiples(align: int) -> None:
    world = peerwarp.World.simulated(2)
    problem = Problem(2, "float32")
    packed, aligned = operation(world, "expert_major"), operation(world, "expert_major", expert_align=align)
    a, b = problem.dispatch(packed), problem.dispatch(aligned)
    outputs: list[list[np.ndarray]] = [[], []]
    for rank in range(2):
        assert np.array_equal(a.expert_rows[rank], b.expert_rows[rank])
        assert all(int(start) % align == 0 for start in b.expert_start[rank])
        y = np.full((len(b.rows[rank]), HIDDEN), np.nan, np.float32)
        parts = zip(a.expert_start[rank], b.expert_start[rank], a.expert_rows[rank], strict=False)
        for number, (start, other, n) in zip(owned(2, rank), parts, strict=False):
            rows = a.rows[rank][start : start + n]
            assert same_bits(b.rows[rank][other : other + n], rows)
            y[other : other + n] = expert(number, rows)
        outputs[0].append(
            np.concatenate(
                [
                    expert(e, a.rows[rank][s : s + n])
                    for e, s, n in zip(owned(2, rank), a.expert_start[rank], a.expert_rows[rank], strict=False)
                ]
            )
        )
        outputs[1].append(y)
    # Gaps belong to no expert: what stands there changes nothing.
    for found, wanted in zip(aligned.combine(b, outputs[1]), packed.combine(a, outputs[0]), strict=True):
        assert same_bits(found, wanted)
    for field, arguments in (
        ("expert_align", {"layout": "expert_major", "expert_align": 12}),
        ("expert_align", {"expert_align": 8}),
        ("expert_align", {"layout": "expert_strided", "expert_align": 8}),
        ("expert_align", {"layout": "expert_major", "expert_align": 0}),
    ):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            operation(world, **arguments)
        assert error.value.field == field


def test_experts_at_a_fixed_stride_leave_out_what_has_no_place() -> None:
    world = peerwarp.World.simulated(2)
    moe = operation(world, "expert_strided")
    stride = 2 * TOKENS
    x = [np.full((TOKENS, HIDDEN), rank + 1, np.float32) for rank in range(2)]
    # Every token names expert 1 three times: 30 rows for 10 places; the first ten are rank 0's tokens 0 to 2, and one of token 3.
    ids = [np.full((TOKENS, TOPK), 1, np.int32)] * 2
    d = moe.dispatch(x, ids, [np.ones((TOKENS, TOPK), np.float32)] * 2)
    assert [int(n[0]) for n in d.overflow] == [6 * TOKENS - stride, 0]
    assert d.expert_start[0].tolist() == [stride * e for e in range(len(d.expert_start[0]))]
    assert d.expert_rows[0].tolist() == [0, stride, 0, 0]
    assert len(d.rows[0]) == 4 * stride
    out = moe.combine(d, d.rows)
    assert [[float(v) for v in one[:, 0]] for one in out] == [[3.0, 3.0, 3.0, 1.0, 0.0], [0.0] * TOKENS]


@pytest.mark.parametrize(
    ("layout", "max_rows", "align"), [("expert_major", 3, 1), ("expert_major", 16, 8), ("expert_strided", 2, 1)]
)
def test_rows_beyond_the_places_are_counted_and_contribute_nothing(layout: str, max_rows: int, align: int) -> None:
    world = peerwarp.World.simulated(2)
    few = operation(world, layout, expert_align=align, max_rows=max_rows, capacities=[1])
    problem = Problem(2, "uint16")
    all_, d = problem.dispatch(operation(world, "expert_major", expert_align=align)), problem.dispatch(few)
    for rank in range(2):
        n, wanted = all_.expert_rows[rank], d.expert_rows[rank]
        if layout == "expert_strided":
            starts, ends = max_rows * np.arange(len(n) + 1), max_rows * (1 + np.arange(len(n)))
            assert int(d.needed[rank][0]) == n.max()
        else:
            starts, ends = np.minimum(all_.expert_start[rank], max_rows), np.full(len(n), max_rows)
            assert int(d.needed[rank][0]) == all_.expert_start[rank][-1]
        assert np.array_equal(d.expert_start[rank], starts)
        assert np.array_equal(wanted, np.minimum(n, ends - starts[:-1]))
        assert int(d.overflow[rank][0]) == n.sum() - wanted.sum()
        for old, new, placed in zip(all_.expert_start[rank], starts, wanted, strict=False):
            assert same_bits(d.rows[rank][new : new + placed], all_.rows[rank][old : old + placed])
    assert sum(int(one[0]) for one in d.overflow) > 0
    # Experts that do nothing: each entry that has a place adds its row, and no other.
    ones = [np.ones((len(x), TOPK), np.float32) for x in problem.x]
    counted = few.dispatch([np.full((len(x), HIDDEN), 0x3F80, np.uint16) for x in problem.x], problem.ids, ones)
    out = few.combine(counted, counted.rows)
    assert sum(float(wide(one)[:, 0].sum()) for one in out) == sum(int(n.sum()) for n in d.expert_rows)
    # With few tokens there are fewer rows than places.
    alone = [x[:1] for x in problem.x], [ids[:1] for ids in problem.ids], [one[:1] for one in problem.weights]
    assert few.dispatch(*alone, max_tokens=1).capacity == 1
    for arguments in (
        {"max_rows": 8},
        {"max_rows": 0, "layout": layout},
        {"max_rows": 12, "layout": "expert_major", "expert_align": 8},
    ):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            operation(world, **arguments)
        assert error.value.field == "max_rows"


def test_entries_of_ranks_that_are_not_active_are_counted() -> None:
    world = peerwarp.World.simulated(2)
    counting, plain = operation(world, missing=True), operation(world)
    problem = Problem(2, "uint16")
    d = problem.dispatch(counting)
    assert d.missing == []
    counting.combine(d, d.rows)
    # All simulated ranks are active.
    assert [(m.dtype, m.tolist()) for m in d.missing] == [(np.int32, [0] * len(x)) for x in problem.x]
    other = problem.dispatch(plain)
    plain.combine(other, other.rows)
    assert other.missing == []
    with pytest.raises(peerwarp.InvalidArgument) as error:
        operation(world, missing="no")
    assert error.value.field == "missing"


@pytest.mark.parametrize("layout", ["rank_major", "expert_major"])
def test_a_table_places_experts_and_may_change_between_rounds(layout: str) -> None:
    world, problem, rng, slots = peerwarp.World.simulated(2), Problem(2, "uint16"), np.random.default_rng(5), 5
    table = [np.zeros((EXPERTS, 2), np.int32) for _ in range(2)]
    counts, load = ([np.zeros(EXPERTS, np.int32) for _ in range(2)] for _ in range(2))
    tables = {"expert_slots": slots, "placement": table, "replica_counts": counts, "expert_load": load}
    placed = operation(world, layout, ids_dtype="int64", missing=True, **tables)
    # What the caller places itself.
    plain = operation(world, layout, experts=2 * slots)
    wide_ids = [ids.astype(np.int64) for ids in problem.ids]
    for _ in range(2):
        for rank in range(2):
            table[rank][:] = rng.integers(-1, 2 * slots + 1, table[rank].shape)
            counts[rank][:] = rng.integers(0, 3, EXPERTS)
        slot_ids, lost = [], []
        for rank, ids in enumerate(problem.ids):
            of_rank = np.full_like(ids, -1)
            for token, k in np.argwhere(ids >= 0):
                expert = ids[token, k]
                if n := counts[rank][expert]:
                    slot = table[rank][expert, (token + rank) % n]
                    of_rank[token, k] = slot if 0 <= slot < 2 * slots else -1
            slot_ids.append(of_rank)
            lost.append(((ids >= 0) & (of_rank < 0)).sum(1).tolist())
        d = placed.dispatch(problem.x, wide_ids, problem.weights)
        want = plain.dispatch(problem.x, slot_ids, problem.weights)
        assert d.first_expert == [0, slots]
        for name in ("rows", "ids", "gather", "expert_rows", "expert_start"):
            assert all(same_bits(a, b) for a, b in zip(getattr(d, name), getattr(want, name), strict=True)), name
        out, right = placed.combine(d, d.rows), plain.combine(want, want.rows)
        assert all(same_bits(a, b) for a, b in zip(out, right, strict=True))
        assert [missing.tolist() for missing in d.missing] == lost
    for ids, counted in zip(problem.ids, load, strict=True):
        assert counted.tolist() == (2 * np.bincount(ids[ids >= 0], minlength=EXPERTS)).tolist()


def test_tables_that_do_not_fit_are_refused_by_name() -> None:
    world = peerwarp.World.simulated(2)
    table = [np.zeros((EXPERTS, 2), np.int32)] * 2
    counts = [np.ones(EXPERTS, np.int32)] * 2
    for field, arguments in (
        ("placement", {"placement": table, "replica_counts": counts}),
        ("placement", {"expert_slots": 4}),
        ("replica_counts", {"expert_slots": 4, "placement": table}),
        ("replica_counts", {"replica_counts": counts}),
        ("placement[0].shape", {"expert_slots": 4, "placement": counts}),
        ("expert_load[0].dtype", {"expert_load": [one.astype(np.int64) for one in counts]}),
        ("expert_slots", {"expert_slots": 65535, "placement": table, "replica_counts": counts}),
        ("empty_id", {"expert_slots": 5, "placement": table, "replica_counts": counts, "empty_id": 9}),
        ("ids_dtype", {"ids_dtype": "int16"}),
    ):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            operation(world, **arguments)
        assert error.value.field == field
    with pytest.raises(peerwarp.InvalidArgument) as error:
        Problem(2, "uint16").dispatch(operation(world, ids_dtype="int64"))
    assert error.value.field == "ids[0].dtype"


def test_halves_of_an_operation_are_what_the_whole_is() -> None:
    world = peerwarp.World.simulated(2)
    whole, split = operation(world), operation(world, split=True)
    problem = Problem(2, "uint16")
    d = problem.dispatch(whole)
    sending = split.dispatch_send(problem.x, problem.ids, problem.weights)
    halves = split.dispatch_receive(sending)
    assert all(same_bits(a, b) for a, b in zip(d.rows, halves.rows, strict=True))
    out = [np.empty_like(x) for x in problem.x]
    returning = split.combine_send(halves, halves.rows)
    assert split.combine_receive(returning, out=out)[0] is out[0]
    assert all(same_bits(a, b) for a, b in zip(whole.combine(d, d.rows), out, strict=True))
    # Both at once too.
    again = problem.dispatch(split)
    assert all(same_bits(a, b) for a, b in zip(split.combine(again, again.rows), out, strict=True))
    for field, call in (
        ("split", lambda: whole.dispatch_send(problem.x, problem.ids, problem.weights)),
        ("split", lambda: whole.combine_send(d, d.rows)),
        ("sending", lambda: split.dispatch_receive(returning)),
        ("returning", lambda: split.combine_receive(sending)),
        ("sending", lambda: operation(world, split=True).dispatch_receive(sending)),
    ):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            call()
        assert error.value.field == field


def test_a_wait_budget_is_a_time() -> None:
    world = peerwarp.World.simulated(2)
    moe = operation(world)
    moe.set_wait_budget(0.5)
    for wrong in (0, -1.0, float("nan"), "long"):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            moe.set_wait_budget(wrong)
        assert error.value.field == "seconds"
    with pytest.raises(peerwarp.InvalidArgument, match="a simulated run raises what is wrong"):
        _ = world.fault


def test_rounds_follow_each_other_and_the_last_of_a_capacity_may_be_combined() -> None:
    world = peerwarp.World.simulated(2)
    moe = operation(world, capacities=[1])
    problems = [Problem(2, "uint16") for _ in range(3)]
    for i, problem in enumerate(problems):
        problem.x = [to_bf16(np.full_like(x, i + 1, np.float32)) for x in problem.x]
    for i, problem in enumerate(problems):
        d = problem.dispatch(moe)
        out = moe.combine(d, d.rows)
        owners = np.zeros(len(problem.x[0]), np.float32)
        for rank in range(2):
            owners += np.isin(problem.ids[0], list(owned(2, rank))).any(axis=1)
        assert np.array_equal(from_bf16(out[0])[:, 0], owners * (i + 1))
    # Capacities have memory of their own, and a dispatch each.
    p = problems[0]
    small = moe.dispatch([x[:1] for x in p.x], [i[:1] for i in p.ids], [w[:1] for w in p.weights], max_tokens=1)
    large = p.dispatch(moe)
    moe.combine(large, large.rows)
    assert len(moe.combine(small, small.rows)[0]) == 1
    for spent in (small, large):
        with pytest.raises(peerwarp.InvalidArgument, match="the last one of its capacity") as error:
            moe.combine(spent, spent.rows)
        assert error.value.field == "d"


def test_weights_that_are_no_numbers_are_refused_where_they_count() -> None:
    world = peerwarp.World.simulated(2)
    p = Problem(2, "uint16")
    p.ids[0][2] = [EXPERTS, -1, 3]
    p.weights[0][2] = [np.nan, np.nan, 1]
    d = p.dispatch(operation(world))
    assert np.isfinite(np.concatenate(d.weights)).all()
    p.weights[0][2, 2] = np.nan
    with pytest.raises(peerwarp.InvalidArgument, match="a number") as error:
        p.dispatch(operation(world))
    assert error.value.field == "weights[0][2, 2]"


@pytest.mark.parametrize("ranks", [2, 3])
def test_weighted_rows_are_what_rows_by_expert_are(ranks: int) -> None:
    world = peerwarp.World.simulated(ranks)
    outs = []
    for moe in (operation(world, weighted=True), operation(world, "expert_major")):
        problem = Problem(ranks, "uint16")
        d = problem.dispatch(moe)
        # Experts that do nothing.
        outs.append([wide(one) for one in moe.combine(d, d.rows)])
    assert all(np.allclose(a, b, rtol=2e-2, atol=2e-2) for a, b in zip(*outs, strict=True))
    assert any(np.abs(one).max() > 0.5 for one in outs[0])


def test_one_id_a_token_and_fewer_experts_than_ranks() -> None:
    world = peerwarp.World.simulated(3)
    moe = peerwarp.MoeAllToAll(world, hidden=8, experts=2, topk=1, max_tokens=2)
    x = [np.full((2, 8), rank + 1, np.float32) for rank in range(3)]
    ids = [np.array([[0], [1]], np.int32)] * 3
    d = moe.dispatch(x, ids, [np.ones((2, 1), np.float32)] * 3)
    assert [len(rows) for rows in d.expert_rows] == [1, 1, 0]
    assert all(np.array_equal(found, sent) for found, sent in zip(moe.combine(d, d.rows), x, strict=True))


def test_what_is_refused() -> None:
    world = peerwarp.World.simulated(2)
    moe, p = operation(world), Problem(2, "uint16")
    strided = np.zeros((3, 2 * HIDDEN), np.uint16)[:, ::2]
    d = p.dispatch(moe)
    other = p.dispatch(operation(world))
    cases = [
        (lambda: moe.dispatch(p.x[:1], p.ids, p.weights), "x"),
        (lambda: moe.dispatch([p.x[0].astype(np.int64), p.x[1]], p.ids, p.weights), "x[0].dtype"),
        (lambda: moe.dispatch([p.x[0], p.x[1].astype(np.float32)], p.ids, p.weights), "x[1].dtype"),
        (lambda: moe.dispatch([p.x[0][:, 1:], p.x[1]], p.ids, p.weights), "x[0].shape"),
        (lambda: moe.dispatch([strided, p.x[1]], [p.ids[0][:3], p.ids[1]], p.weights), "x[0].strides"),
        (lambda: moe.dispatch([np.zeros((TOKENS + 1, HIDDEN), np.uint16), p.x[1]], p.ids, p.weights), "x[0].shape"),
        (lambda: moe.dispatch(p.x, [p.ids[0].astype(np.int64), p.ids[1]], p.weights), "ids[0].dtype"),
        (lambda: moe.dispatch(p.x, [p.ids[0][1:], p.ids[1]], p.weights), "ids[0].shape"),
        (lambda: moe.dispatch(p.x, p.ids, [p.weights[0][:, :2], p.weights[1]]), "weights[0].shape"),
        (lambda: moe.dispatch(p.x, p.ids, p.weights, scales=p.weights), "scales"),
        (lambda: operation(world, dtype="fp8").dispatch(p.x, p.ids, p.weights), "scales"),
        (lambda: moe.combine(None, d.rows), "d"),
        (lambda: moe.combine(other, d.rows), "d"),
        (lambda: moe.combine(d, d.rows[:1]), "y"),
        (lambda: moe.combine(d, [d.rows[0][1:], d.rows[1]]), "y[0].shape"),
        (lambda: moe.combine(d, [y.astype(np.float64) for y in d.rows]), "y[0].dtype"),
        (lambda: moe.combine(d, d.rows, out=[np.empty((1, HIDDEN), np.uint16)] * 2), "out[0].shape"),
        (lambda: operation(world, hidden=12), "hidden"),
        (lambda: operation(world, hidden=-8), "hidden"),
        (lambda: operation(world, topk=EXPERTS + 1), "topk"),
        (lambda: operation(world, dtype="fp4"), "dtype"),
        (lambda: operation(world, dtype="nvfp4"), "hidden"),
        (lambda: operation(world, dtype="mxfp8", hidden=192), "hidden"),
        (lambda: operation(world, dtype="bytes"), "row_bytes"),
        (lambda: operation(world, dtype="bytes", row_bytes=6), "row_bytes"),
        (lambda: operation(world, dtype="bytes", row_bytes=8, scale_bytes=2), "scale_bytes"),
        (lambda: operation(world, dtype="fp8", row_bytes=8), "row_bytes"),
        (lambda: operation(world, scale_bytes=8), "scale_bytes"),
        (lambda: operation(world, dtype="fp8", combined="fp8"), "combined"),
        (lambda: operation(world, combined="fp16"), "combined"),
        (lambda: operation(world, dtype="mxfp4", quantise=True), "quantise"),
        (lambda: operation(world, dtype="fp8", scale_layout="swizzled"), "scale_layout"),
        (lambda: operation(world, dtype="fp8", scale_layout="128x4"), "scale_layout"),
        (lambda: operation(world, scale_layout="column"), "scale_layout"),
        (lambda: operation(world, dtype="fp8", scale_rounding="nearest"), "scale_rounding"),
        (lambda: operation(world, dtype="fp8", quantise=True, scale_rounding="up"), "scale_rounding"),
        (lambda: operation(world, combine_dtype="bf16"), "combine_dtype"),
        (lambda: operation(world, layout="any"), "layout"),
        (lambda: operation(world, "expert_major", weighted=True), "weighted"),
        (lambda: operation(world, weighted="no"), "weighted"),
        (lambda: operation(world, split=1), "split"),
        (lambda: operation(world, dtype="fp8", quantise="bf16"), "quantise"),
        (lambda: operation("world"), "world"),
    ]
    for call, field in cases:
        with pytest.raises(peerwarp.InvalidArgument) as error:
            call()
        assert error.value.field == field
        assert error.value.allowed
