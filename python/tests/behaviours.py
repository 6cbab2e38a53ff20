"""What callers meet, whichever world they have: cases that run on simulated ranks and on GPUs, two ranks each.

`recorded.json` has what each case gives: values and types of each rank, or the field that is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import peerwarp

HIDDEN, EXPERTS, TOPK, TOKENS = 8, 4, 2, 3
#: The recorded results, by case.
RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded.json").read_text())
CASES: dict[str, Callable[[On], Any]] = {}


class On(Protocol):
    """A world of two ranks, and how its calls take arrays."""

    world: peerwarp.World

    def given(self, arrays: list[np.ndarray]) -> Any:
        """Arrays of all ranks, as a call takes them."""

    def each(self, value: Any, act: Callable[[Any], Any]) -> Any:
        """The arrays that a function makes of each rank's array."""

    def kept(self, value: Any) -> list[np.ndarray]:
        """Arrays of all ranks, of what a call returned."""


class Simulated:
    """Simulated ranks: calls take lists."""

    def __init__(self) -> None:
        self.world = peerwarp.World.simulated(2)

    def given(self, arrays: list[np.ndarray]) -> Any:
        return arrays

    def each(self, value: Any, act: Callable[[Any], Any]) -> Any:
        return [act(one) for one in value]

    def kept(self, value: Any) -> list[np.ndarray]:
        return list(value)


def case(act: Callable[[On], Any]) -> Callable[[On], Any]:
    CASES[act.__name__] = act
    return act


def outcome(name: str, on: On) -> Any:
    """What a case gives, as it is recorded."""
    try:
        return CASES[name](on)
    except peerwarp.InvalidArgument as error:
        return {"refused": error.field.split("[")[0].split(".")[0]}


def told(on: On, value: Any) -> list[Any]:
    """Type and values of each rank."""
    return [[str(one.dtype), one.tolist()] for one in on.kept(value)]


def operation(on: On, **options: Any) -> peerwarp.MoeAllToAll:
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "max_tokens": TOKENS, "dtype": "fp16"}
    return peerwarp.MoeAllToAll(on.world, **(sizes | options))


#: Ids of both ranks' tokens, each of which has an expert on both ranks, or two on one.
IDS = [[[0, 2], [1, 3], [0, 1]], [[3, 0], [2, 3], [1, 2]]]


def sent(on: On, ids: list[Any] = IDS, weight: float = 0.25) -> tuple[Any, Any, Any]:
    """Rows of ones, ids and weights."""
    rows = [np.full((TOKENS, HIDDEN), rank + 1, np.float16) for rank in range(2)]
    weights = [np.full((TOKENS, TOPK), weight, np.float32)] * 2
    return on.given(rows), on.given([np.array(one, np.int32) for one in ids]), on.given(weights)


def first_column(on: On, out: Any) -> list[Any]:
    return told(on, on.each(out, lambda one: one[:, 0]))


@case
def ids_that_are_no_experts_mask_their_entries(on: On) -> Any:
    moe = operation(on)
    d = moe.dispatch(*sent(on, [[[0, EXPERTS], [EXPERTS + 7, 2], [-1, -5]], IDS[1]]))
    return first_column(on, moe.combine(d, d.rows))


@case
def integers_that_dispatch_brings(on: On) -> Any:
    d = operation(on).dispatch(*sent(on))
    names = ("ids", "gather", "expert_start", "expert_rows", "tokens_from")
    return {name: sorted({str(one.dtype) for one in on.kept(getattr(d, name))}) for name in names}


@case
def places_that_dispatch_counts(on: On) -> Any:
    d = operation(on, layout="expert_strided").dispatch(*sent(on))
    return {name: told(on, getattr(d, name)) for name in ("overflow", "needed", "expert_rows", "expert_start")}


@case
def combining_twice(on: On) -> Any:
    moe = operation(on)
    d = moe.dispatch(*sent(on))
    moe.combine(d, d.rows)
    return first_column(on, moe.combine(d, d.rows))


@case
def combining_an_earlier_dispatch(on: On) -> Any:
    moe = operation(on)
    d = moe.dispatch(*sent(on))
    moe.dispatch(*sent(on))
    return first_column(on, moe.combine(d, d.rows))


@case
def receiving_a_dispatch_twice(on: On) -> Any:
    moe = operation(on, split=True)
    sending = moe.dispatch_send(*sent(on))
    moe.dispatch_receive(sending)
    return told(on, moe.dispatch_receive(sending).expert_rows)


@case
def receiving_a_combine_twice(on: On) -> Any:
    moe = operation(on, split=True)
    d = moe.dispatch(*sent(on))
    returning = moe.combine_send(d, d.rows)
    moe.combine_receive(returning)
    return first_column(on, moe.combine_receive(returning))


@case
def combining_what_is_being_combined(on: On) -> Any:
    moe = operation(on, split=True)
    d = moe.dispatch(*sent(on))
    moe.combine_send(d, d.rows)
    return first_column(on, moe.combine(d, d.rows))


@case
def combining_into_the_experts_outputs(on: On) -> Any:
    moe = operation(on)
    d = moe.dispatch(*sent(on))
    return first_column(on, moe.combine(d, d.rows, out=on.each(d.rows, lambda rows: rows[:TOKENS])))


@case
def reducing_in_place(on: On) -> Any:
    x = on.given([np.full(16, rank + 1, np.float32) for rank in range(2)])
    return told(on, peerwarp.Collectives(on.world).all_reduce(x, out=x))


@case
def reducing_with_nan(on: On) -> Any:
    x = on.given([np.array([np.nan, 1, np.nan, 2], np.float32), np.array([3, np.nan, np.nan, 1], np.float32)])
    largest = peerwarp.Collectives(on.world).all_reduce(x, "max")
    # JSON has no NaN.
    return [[kind, ["NaN" if np.isnan(x) else x for x in values]] for kind, values in told(on, largest)]


@case
def rows_without_weights(on: On) -> Any:
    moe = operation(on)
    d = moe.dispatch(*sent(on))
    return first_column(on, moe.combine(d, d.rows))


@case
def rows_with_weights(on: On) -> Any:
    moe = operation(on, weighted=True)
    d = moe.dispatch(*sent(on))
    return first_column(on, moe.combine(d, d.rows))


@case
def rows_by_expert_have_weights(on: On) -> Any:
    moe = operation(on, layout="expert_major")
    d = moe.dispatch(*sent(on))
    # As many rows as there are places.
    return first_column(on, moe.combine(d, d.rows))


@case
def weighting_rows_by_expert(on: On) -> Any:
    return operation(on, layout="expert_major", weighted=True).capacities


@case
def rows_of_fp8_that_are_int8(on: On) -> Any:
    _, ids, weights = sent(on)
    # An int8 of -1 is all ones, which as fp8 is a NaN.
    rows = on.given([np.full((TOKENS, HIDDEN), -1, np.int8)] * 2)
    scales = on.given([np.ones((TOKENS, 1), np.float32)] * 2)
    return operation(on, dtype="fp8").dispatch(rows, ids, weights, scales=scales).first_expert
