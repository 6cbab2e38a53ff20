"""Formats of MoE's rows: to the bit what NumPy and other libraries round to."""

from __future__ import annotations

import numpy as np
import pytest
from moe_problem import EXPERTS, TOKENS, Problem, operation, owned

import peerwarp
from conftest import same_bits


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


def sent_back(library: str, rows: np.ndarray, combine_dtype: str) -> np.ndarray:
    """Rows of float32 as a rank gets them back, as a library rounds them."""
    e4m3, e2m1 = (getattr(pytest.importorskip("ml_dtypes"), name) for name in ("float8_e4m3fn", "float4_e2m1fn"))
    tensor = np.float32(1)
    if combine_dtype == "nvfp4":
        tensor = np.abs(rows).max(1).reshape(-1, 1, 1) / np.float32(6 * 448)
    block = {"fp8": 128, "fp8-token": rows.shape[1], "nvfp4": 16}[combine_dtype]
    blocks = rows.reshape(len(rows), -1, block)
    largest = np.abs(blocks).max(2, keepdims=True)
    if combine_dtype == "nvfp4":
        scales = rounded(library, largest / np.float32(6) / tensor, "float8_e4m3fn").view(e4m3).astype(np.float32)
        # PyTorch does not round to four bits.
        parts = rounded("ml_dtypes", blocks / (scales * tensor), "float4_e2m1fn").view(e2m1)
    else:
        scales = largest / np.float32(448)
        parts = rounded(library, blocks / scales, "float8_e4m3fn").view(e4m3)
    return (parts.astype(np.float32) * scales * tensor).reshape(rows.shape)


@pytest.mark.parametrize("library", ["ml_dtypes", "torch"])
@pytest.mark.parametrize("layout", ["rank_major", "expert_major"])
@pytest.mark.parametrize("combine_dtype", ["fp8", "fp8-token", "nvfp4"])
def test_rows_come_back_as_another_library_rounds(combine_dtype: str, layout: str, library: str) -> None:
    hidden, n, rng = 512, 5, np.random.default_rng(13)
    is_weighted = layout == "rank_major"
    sizes = {"hidden": hidden, "topk": 1, "weighted": is_weighted, "dtype": "fp16"}
    moe = operation(peerwarp.World.simulated(2), layout, combine_dtype=combine_dtype, **sizes)
    # One expert a token, on the other rank: a rank's own rows do not travel.
    ids = [np.full((n, 1), EXPERTS - 1, np.int32), np.zeros((n, 1), np.int32)]
    # Rows of experts are weighed before they are rounded.
    weights = [rng.random((n, 1), dtype=np.float32) if is_weighted else np.ones((n, 1), np.float32) for _ in range(2)]
    d = moe.dispatch([np.zeros((n, hidden), np.float16)] * 2, ids, weights)
    y = [rng.standard_normal(rows.shape, dtype=np.float32).astype(np.float16) for rows in d.rows]
    out = moe.combine(d, y)
    for rank in range(2):
        owner = 1 - rank
        first = rank * TOKENS if is_weighted else int(d.expert_start[owner][int(np.argmax(d.expert_rows[owner]))])
        back = sent_back(library, y[owner][first : first + n].astype(np.float32), combine_dtype)
        # A sum begins with zero, which makes one of -0.
        assert same_bits(out[rank], (np.float32(0) + back * weights[rank]).astype(np.float16))
