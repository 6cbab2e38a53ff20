"""MoE dispatch and combine: to the bit what NumPy computes in the kernels' order."""

from __future__ import annotations

import numpy as np
import pytest
from moe_problem import EXPERTS, HIDDEN, TOKENS, TOPK, Problem, expert, gathered, operation, owned, summed

import peerwarp
from conftest import same_bits, wide
from peerwarp._arrays import from_bf16, to_bf16


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
        with pytest.raises(peerwarp.InvalidArgument, match="the latest one of its capacity, received and not used since") as error:
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
