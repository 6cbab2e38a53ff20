"""A problem of MoE for several tests, and what NumPy makes of it."""

from __future__ import annotations

import numpy as np

import peerwarp
from conftest import narrow, random, wide

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
