"""Tests of `timing.py` without GPUs or PyTorch: what is timed, in which order, and what is replied. `tests/python_baselines.rs`
runs them."""

import contextlib
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


def stubs():
    """As much of PyTorch as the module looks at here."""
    torch = types.ModuleType("torch")
    stream = types.SimpleNamespace(wait_stream=lambda other: None)
    torch.cuda = types.SimpleNamespace(
        CUDAGraph=Graph,
        graph=capture,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda of: contextlib.nullcontext(),
    )
    torch.distributed = types.ModuleType("torch.distributed")
    torch.distributed.get_world_size = lambda: 1
    torch.distributed.get_rank = lambda: 0

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


class Broken(Baseline):
    def back(self):
        raise ValueError("no way back")


class TimingTests(unittest.TestCase):
    def reply(self, load, metrics, rounds, cases=1):
        log = []
        request = {"cases": [log] * cases, "seed": 1, "rounds": rounds}
        case = lambda asked, rank, seed: asked  # noqa: E731
        return log, timing.time_one(Timer(log), "shown", load, metrics, "round_trip", case, request)

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
