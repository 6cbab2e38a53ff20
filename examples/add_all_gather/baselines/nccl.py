"""Times what the kernel fuses as PyTorch has it: torch.add, then NCCL's all_gather of the sums."""

import torch
import torch.distributed as dist

from timing import main

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Eager:
    NAME = "torch.add + NCCL all_gather, launched one by one"
    ABOUT = "two kernels, launched by the host: its work is part of the time where the GPU has to wait for it"
    GRAPH = False

    @staticmethod
    def version():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        return f"PyTorch {torch.__version__}, NCCL {nccl}"

    def __init__(self, case):
        elements, dtype = int(case.asked["elements"]), DTYPES[case.asked["dtype"]]
        self.x, self.y = (case.random((elements,), dtype) for _ in range(2))
        self.sums = torch.empty_like(self.x)
        self.out = torch.empty(case.ranks * elements, dtype=dtype, device="cuda")

    def add_all_gather(self):
        torch.add(self.x, self.y, out=self.sums)
        dist.all_gather_into_tensor(self.out, self.sums)


class Graph(Eager):
    NAME = "torch.add + NCCL all_gather, CUDA graph"
    ABOUT = "two kernels in a CUDA graph"
    GRAPH = True


if __name__ == "__main__":
    main([(baseline.NAME, lambda baseline=baseline: baseline) for baseline in (Eager, Graph)], ["add_all_gather"])
