"""Times the collectives of PyTorch: NCCL's, and those of its symmetric memory."""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from timing import Unsupported, main, version

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Nccl:
    NAME = "NCCL, launched one by one"
    ABOUT = "torch.distributed: the host's work is part of the time where the GPU has to wait for it"
    GRAPH = False

    version = staticmethod(version)

    def __init__(self, case):
        asked, ranks = case.asked, case.ranks
        # Ragged parts are timed whole.
        elements = int(asked["elements"]) if "elements" in asked else ranks * int(asked["capacity"])
        self.dtype = DTYPES[asked["dtype"]]
        if asked.get("hook", "none") != "none":
            raise Unsupported("a hook behind the all-reduce")
        if asked["family"] in ("reduce_scatter", "all_to_all") and elements % ranks:
            raise Unsupported(f"{elements} elements in {ranks} equal parts")
        op = asked.get("op", "sum")
        if op not in OPS:
            raise Unsupported(f"reductions by {op}")
        self.op, self.root = OPS[op], int(asked.get("root", 0))
        self.splits = [elements // ranks] * ranks
        self.x = self.vector(case, elements)
        sizes = {"all_gather": ranks * elements, "reduce_scatter": elements // ranks}
        self.out = torch.empty(sizes.get(asked["family"], elements), dtype=self.dtype, device="cuda")

    def vector(self, case, elements):
        return case.random((elements,), self.dtype)

    def all_reduce(self):
        dist.all_reduce(self.x, op=self.op)

    def reduce_scatter(self):
        dist.reduce_scatter_tensor(self.out, self.x, op=self.op)

    def all_gather(self):
        dist.all_gather_into_tensor(self.out, self.x)

    def all_to_all(self):
        dist.all_to_all_single(self.out, self.x)

    def ragged_all_to_all(self):
        # Whole rows, as ours are timed; the splits are on the host already.
        dist.all_to_all_single(self.out, self.x, self.splits, self.splits)

    def broadcast(self):
        dist.broadcast(self.x, src=self.root)


class NcclGraph(Nccl):
    NAME = "NCCL, CUDA graph"
    ABOUT = "torch.distributed in a CUDA graph"
    GRAPH = True


class OneShot(Nccl):
    NAME = "torch symmetric memory, one_shot_all_reduce, CUDA graph"
    ABOUT = "the vector is in symmetric memory already, and the sum is a new tensor"
    GRAPH = True

    def __init__(self, case):
        if case.asked["family"] != "all_reduce" or case.asked["op"] != "sum":
            raise Unsupported("all_reduce of sums alone")
        super().__init__(case)

    def vector(self, case, elements):
        x = symmetric_memory.empty(elements, dtype=self.dtype, device=torch.device("cuda", torch.cuda.current_device()))
        symmetric_memory.rendezvous(x, dist.group.WORLD)
        x.copy_(case.random((elements,), self.dtype))
        return x

    def all_reduce(self):
        torch.ops.symm_mem.one_shot_all_reduce(self.x, "sum", dist.group.WORLD.group_name)


class OneShotEager(OneShot):
    NAME = "torch symmetric memory, one_shot_all_reduce, launched one by one"
    GRAPH = False


class TwoShot(OneShot):
    NAME = "torch symmetric memory, two_shot_all_reduce_, CUDA graph"
    ABOUT = "in place, in symmetric memory"

    def all_reduce(self):
        torch.ops.symm_mem.two_shot_all_reduce_(self.x, "sum", dist.group.WORLD.group_name)


class TwoShotEager(TwoShot):
    NAME = "torch symmetric memory, two_shot_all_reduce_, launched one by one"
    GRAPH = False


if __name__ == "__main__":
    # All cases are of one collective, whose name is its metric's and that of the method.
    with open(sys.argv[1], encoding="utf-8") as request:
        collective = json.load(request)["cases"][0]["family"]
    baselines = [Nccl, NcclGraph, OneShot, OneShotEager, TwoShot, TwoShotEager]
    main([(baseline.NAME, lambda baseline=baseline: baseline) for baseline in baselines], [collective])
