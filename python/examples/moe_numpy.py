"""A small MoE layer on simulated ranks, compared with the same layer in one process of NumPy.

Run it with `python moe_numpy.py`. Every rank has some tokens and some experts; a token goes to its top experts, wherever they are,
and the weighted sum of what they make of it comes home. Kernels are those that run on GPUs, simulated with race checks.
"""

from __future__ import annotations

import numpy as np

import peerwarp

RANKS, TOKENS, HIDDEN, EXPERTS, TOPK = 4, 16, 64, 8, 2
WIDTH = 2 * HIDDEN  # of an expert's inner layer


def experts(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both matrices of each expert."""
    up = rng.normal(size=(EXPERTS, HIDDEN, WIDTH)).astype(np.float32) / np.sqrt(HIDDEN)
    down = rng.normal(size=(EXPERTS, WIDTH, HIDDEN)).astype(np.float32) / np.sqrt(WIDTH)
    return list(zip(up, down, strict=True))


def run_expert(weights: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> np.ndarray:
    up, down = weights
    made: np.ndarray = np.maximum(rows @ up, 0) @ down
    return made


def route(x: np.ndarray, gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each token, int32 `(n, TOPK)`, and the softmax of their scores, float32 `(n, TOPK)`."""
    scores = x @ gate
    ids = np.argsort(-scores, axis=1)[:, :TOPK].astype(np.int32)
    chosen = np.take_along_axis(scores, ids, axis=1)
    weights = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    return ids, (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def on_one_rank(d: peerwarp.Dispatched, rank: int, layer: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """A grouped GEMM of this rank's experts over the rows that came, weighted and summed."""
    y = np.zeros_like(d.rows[rank])
    for own, (first, count) in enumerate(zip(d.expert_start[rank], d.expert_rows[rank], strict=False)):
        number = d.first_expert[rank] + own
        places = d.gather[rank][int(first) : int(first) + int(count)]
        weight = np.where(d.ids[rank][places] == number, d.weights[rank][places], 0).sum(axis=1, keepdims=True)
        y[places] += weight * run_expert(layer[number], d.rows[rank][places])
    return y


def main() -> None:
    rng = np.random.default_rng(0)
    layer, gate = experts(rng), rng.normal(size=(HIDDEN, EXPERTS)).astype(np.float32)
    # Rows travel as bfloat16, so that is what both sides get.
    x = [rng.normal(size=(TOKENS, HIDDEN)).astype(np.float32) for _ in range(RANKS)]
    ids, weights = zip(*(route(rows, gate) for rows in x), strict=True)

    world = peerwarp.World.simulated(RANKS)
    moe = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS)
    d = moe.dispatch(x, list(ids), list(weights))
    out = moe.combine(d, [on_one_rank(d, rank, layer) for rank in range(RANKS)])

    worst = 0.0
    for rank in range(RANKS):
        wanted = np.zeros_like(x[rank])
        for k in range(TOPK):
            made = np.stack([run_expert(layer[e], row) for e, row in zip(ids[rank][:, k], x[rank], strict=True)])
            wanted += weights[rank][:, k : k + 1] * made
        worst = max(worst, float(np.abs(out[rank] - wanted).max() / np.abs(wanted).max()))
    print(f"{RANKS} simulated ranks, {RANKS * TOKENS} tokens, {EXPERTS} experts: off by {worst:.1e} of the largest value")
    assert worst < 2**-6, "more than rounding to bfloat16 explains"


if __name__ == "__main__":
    main()
