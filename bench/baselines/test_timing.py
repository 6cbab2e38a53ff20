"""Tests of `timing.py` without GPUs or PyTorch: what is timed, in which order, and what is replied. `tests/python_baselines.rs`
runs them."""

import contextlib
import io
import sys
import types
import unittest
from unittest import mock


class Graph:
    """A graph that replays the calls that were made while it was captured."""

    captured = None

    def __init__(self):
        self.calls = []

    def replay(self):
        for call in self.calls:
            call()


@contextlib.contextmanager
def capture(graph, capture_error_mode):
    Graph.captured = graph
    yield
    Graph.captured = None


class Memory:
    """Of the GPU: what is free."""

    free = 90


def stubs():
    """As much of PyTorch as the module looks at here."""
    torch = types.ModuleType("torch")
    stream = types.SimpleNamespace(wait_stream=lambda other: None)
    torch.cuda = types.SimpleNamespace(
        CUDAGraph=Graph,
        graph=capture,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        mem_get_info=lambda: (Memory.free, 100),
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda of: contextlib.nullcontext(),
    )
    torch.distributed = types.ModuleType("torch.distributed")
    torch.distributed.get_world_size = lambda: 1
    torch.distributed.get_rank = lambda: 0
    torch.distributed.barrier = lambda: None

    def all_gather_object(all_of_them, own):
        all_of_them[0] = own

    torch.distributed.all_gather_object = all_gather_object
    symmetric = types.ModuleType("torch.distributed._symmetric_memory")
    torch.distributed._symmetric_memory = symmetric
    return {
        "torch": torch,
        "torch.distributed": torch.distributed,
        "torch.distributed._symmetric_memory": symmetric,
    }


with mock.patch.dict(sys.modules, stubs()):
    import timing


class Timer:
    """Calls each step once, and says how many calls that were."""

    def __init__(self, log):
        self.log = log

    def times(self, steps):
        found = []
        for step in steps:
            before = len(self.log)
            step()
            found.append(([float(len(self.log) - before)], 0))
        return found


class Baseline:
    NAME, ABOUT, GRAPH = "theirs", "two calls", False

    @staticmethod
    def version():
        return "1.2"

    def __init__(self, case):
        self.log = case

    def there(self):
        self.call("there")

    def back(self):
        self.call("back")

    def call(self, name):
        if Graph.captured is None:
            self.log.append(name)
        else:
            Graph.captured.calls.append(lambda: self.log.append(name))


class Graphed(Baseline):
    GRAPH = True


class Checked(Baseline):
    """One that says whether its results are right, holds memory, and gives it back."""

    right = True

    def __init__(self, case):
        super().__init__(case)
        Memory.free -= 30

    def check(self):
        self.log.append("check")
        if not self.right:
            raise AssertionError("5 of 8 rows differ")

    def close(self):
        self.log.append("close")
        Memory.free += 30


class After(Checked):
    """One that comes after a library whose memory is given back late."""

    def check(self):
        Memory.free += 50


class Wrong(Checked):
    right = False


class Broken(Baseline):
    def back(self):
        raise ValueError("no way back")


class TimingTests(unittest.TestCase):
    def reply(self, load, metrics, rounds, cases=1, **asked):
        log = []
        request = {"cases": [log] * cases, "seed": 1, "rounds": rounds, **asked}
        case = lambda asked, rank, seed: asked  # noqa: E731
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            found = timing.time_one(Timer(log), "shown", load, metrics, "round_trip", case, request)
        self.said = said.getvalue().splitlines()
        return log, found

    def times(self, reply):
        return [(t["case"], t["metric"], t["rounds"], t["graph"], t["times_us"]) for t in reply["times"]]

    def test_a_round_of_several_metrics_is_timed_as_a_whole_too(self):
        for baseline in (Baseline, Graphed):
            log, reply = self.reply(lambda: baseline, ["there", "back"], 3)
            found = [("there", 1, 1.0), ("back", 1, 1.0), ("round_trip", 1, 2.0), ("round_trip", 3, 6.0 / 3)]
            expected = [(0, metric, rounds, baseline.GRAPH, [[us]]) for metric, rounds, us in found]
            self.assertEqual(self.times(reply), expected)
            self.assertEqual((reply["name"], reply["version"], reply["absent"]), ("theirs", "1.2", None))
            # The warm-up, then metrics in turn, a round, and rounds.
            self.assertEqual(log, ["there", "back"] * (timing.WARMUP + 1 + 1 + 3))

    def test_a_single_metric_is_the_round(self):
        _, reply = self.reply(lambda: Baseline, ["there"], 1, cases=2)
        self.assertEqual(self.times(reply), [(n, "there", 1, False, [[1.0]]) for n in (0, 1)])

    def test_results_are_compared_before_they_are_timed_and_memory_is_reported(self):
        log, reply = self.reply(lambda: Checked, ["there"], 1, cases=2)
        self.assertEqual((reply["absent"], reply["checked"], reply["memory_bytes"]), (None, True, [30, 30]))
        once = ["check", *["there"] * (timing.WARMUP + 1), "close"]
        self.assertEqual(log, once * 2)
        self.assertEqual(self.said[0], "progress: shown: loading")
        self.assertEqual(self.said[1:], [f"progress: theirs: problem {n} of 2" for n in (1, 2)])
        self.assertEqual(self.reply(lambda: After, ["there"], 1)[1]["memory_bytes"], [None])
        log, reply = self.reply(lambda: Wrong, ["there"], 1, cases=2)
        self.assertEqual(reply["absent"], "case 0: wrong results: AssertionError: 5 of 8 rows differ")
        self.assertEqual((reply["times"], log), ([], ["check", "close"]))
        self.assertFalse(self.reply(lambda: Baseline, ["there"], 1)[1]["checked"])

    def test_eager_calls_are_timed_too_where_they_are_asked_for(self):
        log, reply = self.reply(lambda: Graphed, ["there", "back"], 1, eager=True)
        expected = [(metric, graph) for graph in (True, False) for metric in ("there", "back", "round_trip")]
        self.assertEqual([(t["metric"], t["graph"]) for t in reply["times"]], expected)
        self.assertEqual(len(reply["host_us"]), 1)
        self.assertGreater(reply["host_us"][0], 0)
        # What can be no graph is launched one by one anyhow, and once.
        _, reply = self.reply(lambda: Baseline, ["there"], 1, eager=True)
        self.assertEqual([(t["metric"], t["graph"]) for t in reply["times"]], [("there", False)])

    def test_what_cannot_be_loaded_or_fails_is_absent_with_its_reason(self):
        def missing():
            raise ModuleNotFoundError("No module named 'theirs'")

        _, reply = self.reply(missing, ["there"], 1)
        self.assertEqual((reply["name"], reply["times"]), ("shown", []))
        self.assertEqual(reply["absent"], "ModuleNotFoundError: No module named 'theirs'")
        _, reply = self.reply(lambda: Broken, ["there", "back"], 1)
        self.assertEqual(reply["absent"], "case 0: ValueError: no way back")


if __name__ == "__main__":
    unittest.main()
