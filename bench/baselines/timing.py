"""How peers are timed: as `peerwarp bench` times its own kernels.

On every rank the GPU is kept busy, so that the host is done before anything is measured; a barrier of all GPUs follows,
then an event, the operation, an event. What an iteration took is the slowest rank's time, which the caller works out.
"""

import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

# Clock cycles of the sleep: about 2 ms.
SLEEP_CYCLES = 4_000_000
WARMUP = 3
# A rank that fails must not leave the others in a barrier.
BARRIER_MS = 20_000
# More than any cache holds.
FLUSHED_BYTES = 256 << 20


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


def graph_of(step, rounds=1):
    """A graph of as many calls of `step`."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Threads of the process group look at events meanwhile: that is none of the capture's business.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(rounds):
            step()
    return graph


def time_peer(timer, peer, rounds):
    """All times of a peer: `[(what, graph, behind, microseconds)]` of this rank."""

    def round_trip():
        peer.dispatch()
        peer.combine()

    def warm():
        for _ in range(WARMUP):
            round_trip()
        torch.cuda.synchronize()

    def many():
        for _ in range(rounds):
            round_trip()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm()
    if peer.GRAPH:
        # A combine belongs to the dispatch before it: they are captured, and replayed, in turn.
        pair = [graph_of(peer.dispatch).replay, graph_of(peer.combine).replay]
        one, several = graph_of(round_trip).replay, graph_of(round_trip, rounds).replay
    else:
        pair, one, several = [peer.dispatch, peer.combine], round_trip, many
    dispatch, combine = timer.times(pair)
    (alone,), (together,) = timer.times([one]), timer.times([several])
    of_many = [us / rounds for us in together[0]], together[1]
    found = [("dispatch", dispatch), ("combine", combine), ("round_trip", alone), ("round_trip_of_many", of_many)]
    return [(what, peer.GRAPH, behind, us) for what, (us, behind) in found]
