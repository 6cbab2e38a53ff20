"""Simulated ranks do what is recorded; `gpu/two_ranks.py` compares GPUs with the same record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from behaviours import CASES, RECORDED, Simulated, outcome


@pytest.mark.parametrize("name", CASES)
def test_simulated_ranks_do_what_is_recorded(name: str) -> None:
    # As JSON has it: tuples are lists.
    found: Any = json.loads(json.dumps(outcome(name, Simulated())))
    assert found == RECORDED[name], json.dumps({name: found})


def test_each_case_is_recorded() -> None:
    assert list(RECORDED) == list(CASES)
