"""Rounding to bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from peerwarp._arrays import from_bf16, to_bf16


def test_float32_is_rounded_to_the_nearest_and_to_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0, np.inf, 3.4e38], np.float32)
    wanted = np.array([1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -0.0, np.inf, np.inf], np.float32)
    assert from_bf16(to_bf16(values)).tobytes() == wanted.tobytes()
    assert np.isnan(from_bf16(to_bf16(np.array([np.nan, -np.nan], np.float32)))).all()
    hidden = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(from_bf16(to_bf16(hidden))).all()


def test_it_rounds_as_ml_dtypes_does() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(1).integers(0, 2**32, 10_000, dtype=np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    assert np.array_equal(to_bf16(values), values.astype(ml_dtypes.bfloat16).view(np.uint16))
