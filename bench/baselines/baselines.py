"""Times other libraries' MoE dispatch and combine. `peerwarp bench --compare` runs it:

    python3 -m torch.distributed.run --standalone --nproc-per-node RANKS peers.py REQUEST.json REPLY.json

A peer that cannot be imported, or cannot do what it is asked for, is reported as absent with the reason.
"""

import importlib
import json
import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from timing import Timer, time_peer

# Module and class of each peer, and its name where it cannot be imported.
PEERS = [
    ("nccl_peers", "Sorted", "torch sort + NCCL all_to_all_single"),
    ("nccl_peers", "Plain", "NCCL all_to_all_single"),
    ("deep_ep_peer", "DeepEp", "DeepEP"),
    ("pplx_peer", "Pplx", "pplx-kernels"),
    ("flashinfer_peer", "FlashInfer", "flashinfer moe_a2a"),
]

DTYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "fp8": (torch.float8_e4m3fn, torch.bfloat16),
}
SCALE_BLOCK = 128
# A rank that fails must not leave the others waiting for long.
TIMEOUT = timedelta(seconds=120)


class Case:
    """One problem, as this rank sees it."""

    def __init__(self, asked, rank, seed):
        self.rank, self.ranks = rank, asked["ranks"]
        self.hidden, self.experts, self.topk = asked["hidden"], asked["experts"], asked["topk"]
        # Tokens of a rank at most, and of this one.
        self.tokens = asked["tokens"]
        ids = asked["ids"][rank]
        self.n = len(ids) // self.topk
        self.ids = torch.tensor(ids, dtype=torch.int32, device="cuda").view(self.n, self.topk)
        weights = torch.tensor(asked["weights"][rank], dtype=torch.float32, device="cuda")
        self.weights = weights.view(self.n, self.topk)
        # Rows that our dispatch sends, [from][to].
        self.rows = asked["rows"]
        self.rows_by_entry = rows_by_entry(asked, rank)
        self.generator = torch.Generator("cuda").manual_seed(seed + rank)
        dtype, self.combined = DTYPES[asked["dtype"]]
        self.x = self.random((self.n, self.hidden), self.combined).to(dtype)
        self.scales = None
        if asked["dtype"] == "fp8":
            blocks = -(-self.hidden // SCALE_BLOCK)
            self.scales = torch.ones((self.n, blocks), dtype=torch.float32, device="cuda")

    def random(self, shape, dtype):
        """Random values, never zeros, which may move faster than others."""
        if dtype == torch.uint8:
            return torch.randint(1, 256, shape, dtype=dtype, device="cuda", generator=self.generator)
        values = torch.rand(shape, dtype=torch.float32, device="cuda", generator=self.generator)
        return (values * 0.5 + 0.5).to(dtype)


def rows_by_entry(asked, rank):
    """Entries of all ranks that name one of this rank's experts."""
    ranks, experts = asked["ranks"], asked["experts"]
    few, larger = divmod(experts, ranks)
    first = rank * few + min(rank, larger)
    end = first + few + (rank < larger)
    return sum(first <= expert < end for ids in asked["ids"] for expert in ids)


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
    except BaseException as error:  # noqa: BLE001: whatever a peer raises is its reason
        if isinstance(error, KeyboardInterrupt):
            raise
        problem = "".join(traceback.format_exception_only(error)).strip()
    return result, agreed(problem)


def time_case(timer, make, asked, number, rounds, seed):
    """The times of one case, as the reply has them."""
    torch.cuda.empty_cache()
    peer, problem = attempt(lambda: make(Case(asked, dist.get_rank(), seed)))
    if problem:
        return [], problem
    found, problem = attempt(lambda: time_peer(timer, peer, rounds))
    if problem:
        return [], problem
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    times = []
    for per_rank in zip(*gathered):
        what, graph, _, _ = per_rank[0]
        behind = max(rank[2] for rank in per_rank)
        us = [rank[3] for rank in per_rank]
        times.append({"case": number, "what": what, "graph": graph, "host_behind": behind, "times_us": us})
    return times, None


def time_one(timer, module, name, shown, request):
    reply = {"name": shown, "version": None, "about": "", "absent": None, "times": []}
    make, problem = attempt(lambda: getattr(importlib.import_module(module), name))
    if problem:
        return {**reply, "absent": problem}
    reply.update(name=make.NAME, about=make.ABOUT, version=attempt(make.version)[0])
    for number, asked in enumerate(request["cases"]):
        times, problem = time_case(timer, make, asked, number, request["rounds"], request["seed"])
        reply["times"] += times
        if problem:
            # What a failed collective leaves behind is not known.
            return {**reply, "absent": f"case {number}: {problem}"}
    return reply


def main():
    request_path, reply_path = sys.argv[1:]
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT, device_id=torch.device("cuda", rank))
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    timer = Timer(request["iterations"], request["flush_l2"])
    peers = [time_one(timer, module, name, shown, request) for module, name, shown in PEERS]
    if rank == 0:
        with open(reply_path, "w", encoding="utf-8") as file:
            json.dump({"peers": peers}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
