"""Errors are typed, say where, and let the next call work."""

from __future__ import annotations

import pickle
import threading
import time

import numpy as np
import pytest

import peerwarp


def test_a_bug_in_a_kernel_is_found_at_the_authors_line() -> None:
    world = peerwarp.World.simulated(2, seed=1)
    collectives = peerwarp.Collectives(world)
    x = [np.ones(64, np.float32)] * 2
    with pytest.raises(peerwarp.RaceFound) as error:
        collectives._core.run_with_a_bug([one.tobytes() for one in x])
    found = error.value.findings
    assert found
    assert "data-race" in {one.kind for one in found}
    assert "data-race" in str(error.value)
    race = next(one for one in found if one.kind == "data-race")
    assert race.line is not None
    assert ".rs:" in race.line
    assert race.line in str(race)
    assert race.message
    assert race.times >= 1
    # Nothing is left of it.
    assert collectives.all_reduce(x)[1][0] == 2


def test_without_race_checks_a_race_is_not_looked_for() -> None:
    collectives = peerwarp.Collectives(peerwarp.World.simulated(2, seed=1, check_races=False))
    try:
        collectives._core.run_with_a_bug([np.ones(64, np.float32).tobytes()] * 2)
    except peerwarp.RaceFound as error:
        assert "data-race" not in {one.kind for one in error.findings}


def test_errors_are_of_one_family() -> None:
    for kind in (peerwarp.InvalidArgument, peerwarp.RaceFound, peerwarp.Aborted, peerwarp.NoDriver):
        assert issubclass(kind, peerwarp.PeerwarpError)
    assert issubclass(peerwarp.InvalidArgument, ValueError)
    error = pickle.loads(pickle.dumps(peerwarp.InvalidArgument("a", 1, "2")))
    assert (error.field, error.value, error.allowed) == ("a", "1", "2")


def test_wrong_arguments_of_the_core_are_errors_and_no_panics() -> None:
    world = peerwarp.World.simulated(2)
    core = peerwarp.Collectives(world)._core
    short = [b"\0" * 8] * 2
    # Fewer bytes than elements: what is not written is read.
    with pytest.raises(peerwarp.PeerwarpError):
        core.run("all_reduce", ("sum", 0), ("f32", 64), short)
    # More bytes than elements, and fewer ranks than there are.
    for x in ([b"\0" * 1024] * 2, [b"\0" * 8]):
        with pytest.raises(peerwarp.PeerwarpError):
            core.run("all_reduce", ("sum", 0), ("f32", 2), x)
    for name, op, dtype in (("nothing", "sum", "f32"), ("all_reduce", "mean", "f32"), ("all_reduce", "sum", "f64")):
        with pytest.raises(peerwarp.InvalidArgument):
            core.run(name, (op, 0), (dtype, 2), short)


def test_other_threads_run_while_ranks_are_simulated() -> None:
    collectives = peerwarp.Collectives(peerwarp.World.simulated(4))
    x = [np.ones(60_000, np.float32)] * 4
    over, turns = threading.Event(), 0

    def simulate() -> None:
        collectives.all_reduce(x)
        over.set()

    thread = threading.Thread(target=simulate)
    thread.start()
    while not over.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert turns > 3
