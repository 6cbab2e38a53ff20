"""How baselines are timed, as `peerwarp bench` times its own kernels, and how a script of baselines is run.

On every rank the GPU is kept busy, so that the host is done before anything is measured; a barrier of all GPUs follows,
then an event, the operation, an event. What an iteration took is the slowest rank's time, which the caller works out.

A script of one's own has a class for each baseline, whose methods are the metrics of a round, and calls `main`:

    class Nccl:
        NAME, ABOUT, GRAPH = "NCCL all_gather", "what it does and what that includes", True

        @staticmethod
        def version():
            return f"PyTorch {torch.__version__}"

        def __init__(self, case):
            ...

        def all_gather(self):
            ...

        def check(self):
            ...  # optional: raises if what a round yields is wrong

        def close(self):
            ...  # optional: gives back what is kept for the process

    if __name__ == "__main__":
        main([(Nccl.NAME, lambda: Nccl)], ["all_gather"])

`peerwarp bench --compare` runs it as

    python3 -m torch.distributed.run --standalone --nproc-per-node RANKS SCRIPT.py REQUEST.json REPLY.json
"""

import gc
import json
import os
import statistics
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

# Of the request.
SCHEMA = 2
# Clock cycles of the sleep: about 2 ms.
SLEEP_CYCLES = 4_000_000
WARMUP = 3
# A rank that fails must not leave the others in a barrier, or waiting for long; but some libraries compile for minutes.
BARRIER_MS = 20_000
TIMEOUT = timedelta(minutes=15)
# Calls whose time on the host is taken together: so few that the driver's queue has room for all of them.
CALLS = 20
# More than any cache holds.
FLUSHED_BYTES = 256 << 20


class Unsupported(Exception):
    """What a baseline cannot do."""


def version():
    """Of PyTorch and what it brings."""
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}"


class Timer:
    """Times operations on the current stream of this rank's GPU."""

    def __init__(self, iterations, flush_l2):
        self.iterations = iterations
        here = torch.device("cuda", torch.cuda.current_device())
        words = symmetric_memory.empty(1, dtype=torch.int32, device=here)
        self.handle = symmetric_memory.rendezvous(words, dist.group.WORLD)
        self.flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda") if flush_l2 else None

    def times(self, steps):
        """Runs `steps` in turn, over and over. For each step this rank's microseconds by iteration, and how many of them
        began before the host had launched the step: those have the host's part in them."""
        times = [[] for _ in steps]
        behind = [0] * len(steps)
        for iteration in range(WARMUP + self.iterations):
            before = torch.cuda.Event(enable_timing=True)
            around = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in steps]
            begun, launched_ms = time.perf_counter(), []
            before.record()
            for number, step in enumerate(steps):
                if self.flushed is not None:
                    self.flushed.fill_(number)
                torch.cuda._sleep(SLEEP_CYCLES)
                self.handle.barrier(channel=0, timeout_ms=BARRIER_MS)
                around[number][0].record()
                step()
                around[number][1].record()
                launched_ms.append((time.perf_counter() - begun) * 1e3)
            torch.cuda.synchronize()
            if iteration < WARMUP:
                continue
            for number, (start, end) in enumerate(around):
                behind[number] += before.elapsed_time(start) < launched_ms[number]
                times[number].append(start.elapsed_time(end) * 1e3)
        return list(zip(times, behind))


class Case:
    """One problem, as this rank sees it: `asked` is what the family's `baseline_case` says."""

    def __init__(self, asked, rank, seed):
        self.asked, self.rank, self.ranks = asked, rank, dist.get_world_size()
        self.generator = torch.Generator("cuda").manual_seed(seed + rank)

    def random(self, shape, dtype):
        """Random values, never zeros, which may move faster than others."""
        if dtype == torch.uint8:
            return torch.randint(1, 256, shape, dtype=dtype, device="cuda", generator=self.generator)
        values = torch.rand(shape, dtype=torch.float32, device="cuda", generator=self.generator)
        return (values * 0.5 + 0.5).to(dtype)


def graph_of(steps, rounds=1):
    """A graph of as many calls of `steps`, one after the other."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Threads of the process group look at events meanwhile: that is none of the capture's business.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for step in steps * rounds:
            step()
    return graph.replay


def eager(steps, rounds=1):
    """The same calls, launched by the host one by one."""

    def call():
        for step in steps * rounds:
            step()

    return call


def time_baseline(timer, baseline, metrics, round_name, rounds, launch=None):
    """All times of a baseline: `[(metric, rounds, graph, behind, microseconds)]` of this rank. As graphs where it can be one,
    unless `launch` is another way."""
    steps = [getattr(baseline, metric) for metric in metrics]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager(steps, WARMUP)()
        torch.cuda.synchronize()
    launch = launch or (graph_of if baseline.GRAPH else eager)
    # A step belongs to those before it: they are captured, and replayed, in turn.
    each = [launch([step]) for step in steps]
    found = [(metric, 1, *times) for metric, times in zip(metrics, timer.times(each))]
    if len(steps) > 1:
        found.append((round_name, 1, *timer.times([launch(steps)])[0]))
    if rounds > 1:
        us, behind = timer.times([launch(steps, rounds)])[0]
        found.append((round_name, rounds, [t / rounds for t in us], behind))
    return [(metric, number, launch is graph_of, behind, us) for metric, number, us, behind in found]


def host_time(steps):
    """What a round takes the host, in microseconds, launched one after the other: the host does not wait for the GPU in between."""
    took = []
    for _ in range(15):
        torch.cuda.synchronize()
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(CALLS):
            for step in steps:
                step()
        took.append((time.perf_counter() - begun) / CALLS * 1e6)
    torch.cuda.synchronize()
    return statistics.median(took)


def tell(what):
    """Says what is going on, for who waits: `peerwarp bench` shows lines that begin like this."""
    if dist.get_rank() == 0:
        print(f"progress: {what}", file=sys.stderr, flush=True)


def free_bytes():
    """Of this rank's GPU, without what PyTorch keeps for later."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def agreed(problem):
    """The first rank's problem, if any has one: all ranks go on, or none."""
    problems = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((p for p in problems if p is not None), None)


def attempt(action):
    """What `action` returns, and why it failed on any rank."""
    result, problem = None, None
    try:
        result = action()
    except BaseException as error:  # noqa: BLE001: whatever a baseline raises is its reason
        if isinstance(error, KeyboardInterrupt):
            raise
        problem = "".join(traceback.format_exception_only(error)).strip()
    return result, agreed(problem)


def time_case(timer, baseline, metrics, round_name, request, number):
    """The times of one case, as the reply has them; where eager calls are asked for too, in the order in which they are taken."""

    def timed():
        rounds, found = request["rounds"], []
        found += time_baseline(timer, baseline, metrics, round_name, rounds)
        if request.get("eager") and baseline.GRAPH:
            found += time_baseline(timer, baseline, metrics, round_name, rounds, eager)
        return found

    found, problem = attempt(timed)
    if problem:
        return [], problem
    gathered = everybodys(found)
    times = []
    for per_rank in zip(*gathered):
        metric, of, graph, _, _ = per_rank[0]
        behind = max(rank[3] for rank in per_rank)
        us = [rank[4] for rank in per_rank]
        entry = {"case": number, "metric": metric, "rounds": of, "graph": graph, "host_behind": behind, "times_us": us}
        times.append(entry)
    return times, None


def everybodys(own):
    """What each rank has."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return gathered


def time_one(timer, shown, load, metrics, round_name, make_case, request):
    """The reply's part about one baseline: one that cannot be loaded or cannot do what it is asked for, or does it wrong, is absent."""
    reply = {"name": shown, "version": None, "about": "", "absent": None, "checked": False, "times": []}
    reply |= {"memory_bytes": [], "host_us": []}
    tell(f"{shown}: loading")
    make, problem = attempt(load)
    if problem:
        return {**reply, "absent": problem}
    reply.update(name=make.NAME, about=make.ABOUT, version=attempt(make.version)[0], checked=hasattr(make, "check"))
    cases = request["cases"]
    for number, asked in enumerate(cases):
        tell(f"{make.NAME}: problem {number + 1} of {len(cases)}{getattr(make, 'SLOW', '')}")
        case, problem = attempt(lambda: make_case(asked, dist.get_rank(), request["seed"]))
        problem = problem or time_problem(timer, make, case, metrics, round_name, request, number, reply)
        if problem:
            # What a failed collective leaves behind is not known.
            return {**reply, "absent": f"case {number}: {problem}"}
    return reply


def time_problem(timer, make, case, metrics, round_name, request, number, reply):
    """Makes a baseline of a case, compares what it yields, and puts its times into the reply; or why not."""
    before = free_bytes()
    baseline, problem = attempt(lambda: make(case))
    if not problem and hasattr(baseline, "check"):
        _, problem = attempt(baseline.check)
        problem = problem and f"wrong results: {problem}"
    if not problem:
        taken = before - free_bytes()
        times, problem = time_case(timer, baseline, metrics, round_name, request, number)
        reply["times"] += times
        most = max(everybodys(taken))
        # Less than nothing: what a library before has given back meanwhile was more, and how much more is not known.
        reply["memory_bytes"].append(most if most >= 0 else None)
    if not problem and request.get("eager"):
        us, problem = attempt(lambda: host_time([getattr(baseline, metric) for metric in metrics]))
        reply["host_us"].append(None if problem else max(everybodys(us)))
    if baseline is not None and hasattr(baseline, "close"):
        _, closing = attempt(baseline.close)
        problem = problem or closing
    return problem


def main(baselines, metrics, round_name=None, make_case=Case):
    """Times baselines as the command line's request asks, and writes the reply.

    `baselines` is `[(name, load)]`: what `load()` returns makes a baseline of a case, and `name` is what it is called if that
    fails. `metrics` are the names of the methods that are a round, in order, and `round_name` what the whole round is called;
    of a single metric it is the metric's own."""
    request_path, reply_path = sys.argv[1:]
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT, device_id=torch.device("cuda", rank))
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    if request["schema"] != SCHEMA:
        raise SystemExit(f"a request of schema {request['schema']}, and this script takes {SCHEMA}")
    timer = Timer(request["iterations"], request["flush_l2"])
    name = round_name or metrics[0]
    found = [time_one(timer, shown, load, metrics, name, make_case, request) for shown, load in baselines]
    if rank == 0:
        with open(reply_path, "w", encoding="utf-8") as file:
            json.dump({"baselines": found}, file)
    dist.barrier()
    dist.destroy_process_group()
