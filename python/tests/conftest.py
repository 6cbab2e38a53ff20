"""What tests share: worlds, and what kernels have to compute."""

from __future__ import annotations

import numpy as np
import pytest

import peerwarp
from peerwarp._arrays import from_bf16, to_bf16


@pytest.fixture(params=[2, 3])
def world(request: pytest.FixtureRequest) -> peerwarp.World:
    return peerwarp.World.simulated(request.param, seed=7)


def random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Values of several sizes and both signs; bf16 as its bits."""
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return to_bf16(values) if dtype == "uint16" else values.astype(dtype)


def wide(array: np.ndarray) -> np.ndarray:
    """As float32."""
    return from_bf16(array) if array.dtype == np.uint16 else array.astype(np.float32)


def narrow(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Float32 rounded once to a type."""
    return to_bf16(values) if dtype == np.uint16 else values.astype(dtype)


def reduced(arrays: list[np.ndarray], op: str) -> np.ndarray:
    """In float32, in the order of ranks, rounded once."""
    acts = {"sum": np.add, "max": np.fmax, "min": np.fmin, "max-nan": np.maximum, "min-nan": np.minimum}
    act = acts[op]
    result = wide(arrays[0])
    for array in arrays[1:]:
        result = act(result, wide(array))
    return narrow(result, arrays[0].dtype)


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()
