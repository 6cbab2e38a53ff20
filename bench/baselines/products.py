"""Times products of matrices of PyTorch: cuBLAS, with NCCL where rows are gathered or added up, and both side by side."""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from timing import Unsupported, main, version

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


def plain(asked):
    """Sizes m, n and k of a product without an activation, and the type of its elements."""
    if asked.get("activation", "none") != "none":
        raise Unsupported("an activation of the product")
    if asked.get("out", "wide") != "wide":
        raise Unsupported("a result of fp8 with scales")
    return int(asked["m"]), int(asked["n"]), int(asked["k"]), DTYPES[asked["dtype"]]


class Cublas:
    NAME = "cuBLAS, CUDA graph"
    ABOUT = "torch.mm, behind NCCL's all_gather where rows are gathered, before its reduce_scatter where parts are added up"
    GRAPH = True

    version = staticmethod(version)

    def __init__(self, case):
        asked, (m, n, k, dtype) = case.asked, plain(case.asked)
        if dtype == torch.float8_e4m3fn:
            raise Unsupported("elements of fp8")
        self.product = asked["family"]
        gathered, scattered = self.product == "all_gather_matmul", self.product == "matmul_reduce_scatter"
        self.x = self.matrix(case, (m // case.ranks if gathered else m, k), dtype)
        self.w = case.random((n, k), dtype)
        self.bias = case.random((n,), dtype) if asked.get("bias") == "true" else None
        self.all = torch.empty((m, k), dtype=dtype, device="cuda") if gathered else self.x
        self.out = torch.empty((m, n), dtype=dtype, device="cuda")
        self.rows = torch.empty((m // case.ranks, n), dtype=dtype, device="cuda") if scattered else self.out

    def matrix(self, case, shape, dtype):
        return case.random(shape, dtype)

    def matmul(self):
        if self.bias is None:
            torch.mm(self.all, self.w.T, out=self.out)
        else:
            torch.addmm(self.bias, self.all, self.w.T, out=self.out)

    def all_gather_matmul(self):
        dist.all_gather_into_tensor(self.all, self.x)
        self.matmul()

    def matmul_reduce_scatter(self):
        self.matmul()
        dist.reduce_scatter_tensor(self.rows, self.out)


class ScaledMm:
    NAME = "torch scaled_mm, CUDA graph"
    ABOUT = "torch._scaled_mm of e4m3 with scales of all elements, or of each row; results are bf16"
    GRAPH = True

    version = staticmethod(version)

    def __init__(self, case):
        asked, (m, n, k, dtype) = case.asked, plain(case.asked)
        if dtype != torch.float8_e4m3fn or asked.get("scales") == "block":
            raise Unsupported("elements other than fp8 with one scale for all or for each row")
        self.x, self.w = (case.random((rows, k), torch.bfloat16).to(dtype) for rows in (m, n))
        by_row = asked.get("scales") == "row"
        shapes = ((m, 1), (1, n)) if by_row else ((), ())
        self.scales = [torch.ones(shape, dtype=torch.float32, device="cuda") for shape in shapes]
        self.bias = case.random((n,), torch.bfloat16) if asked.get("bias") == "true" else None

    def matmul(self):
        self.out = torch._scaled_mm(
            self.x, self.w.T, *self.scales, bias=self.bias, out_dtype=torch.bfloat16
        )


class CublasAlone(Cublas):
    NAME = "cuBLAS alone, CUDA graph"
    ABOUT = "torch.mm of the same operands, which are there already, and whose result goes nowhere"

    def all_gather_matmul(self):
        self.matmul()

    def matmul_reduce_scatter(self):
        self.matmul()


class CublasEager(Cublas):
    NAME = "cuBLAS, launched one by one"
    GRAPH = False


class AsyncTp(Cublas):
    NAME = "torch symmetric memory, fused, launched one by one"
    ABOUT = (
        "fused_all_gather_matmul gathers rows by copy engines while cuBLAS multiplies those that are there; "
        "fused_matmul_reduce_scatter sends parts of the result while cuBLAS multiplies the next ones"
    )
    GRAPH = False

    def __init__(self, case):
        super().__init__(case)
        if self.bias is not None:
            raise Unsupported("a bias of the product")

    def matrix(self, case, shape, dtype):
        self.group = dist.group.WORLD.group_name
        if self.product == "matmul_reduce_scatter":
            return case.random(shape, dtype)
        x = symmetric_memory.empty(shape, dtype=dtype, device=torch.device("cuda", torch.cuda.current_device()))
        symmetric_memory.rendezvous(x, dist.group.WORLD)
        x.copy_(case.random(shape, dtype))
        return x

    def all_gather_matmul(self):
        torch.ops.symm_mem.fused_all_gather_matmul(self.x, [self.w.T], 0, self.group)

    def matmul_reduce_scatter(self):
        torch.ops.symm_mem.fused_matmul_reduce_scatter(self.x, self.w.T, "sum", 0, self.group)


class GroupedMm:
    NAME = "torch grouped_mm, CUDA graph"
    ABOUT = "torch._grouped_mm of rows of all groups and the ends of groups, which are on the GPU"
    GRAPH = True

    version = staticmethod(version)

    def __init__(self, case):
        asked = case.asked
        self.of = int(asked["groups"]), int(asked["rows"]), int(asked["n"]), int(asked["k"])
        more = {"activation": "none", "bias": "false", "weighted": "false", "stride": "0", "out": "wide", "gather": "0"}
        for field, least in more.items():
            if asked.get(field, least) != least:
                raise Unsupported(f"{field} {asked[field]}")
        self.operands(case, DTYPES[asked["dtype"]])
        # Rows between groups belong to the group before them.
        (_, rows, _, _), align = self.of, int(asked["align"])
        ends, end = [], 0
        for count in asked["counts"]:
            end = min(-(-(end + count) // align) * align, rows)
            ends.append(end)
        self.ends = torch.tensor(ends, dtype=torch.int32, device="cuda")

    def operands(self, case, dtype):
        if dtype != torch.bfloat16:
            raise Unsupported("elements other than bf16")
        groups, rows, n, k = self.of
        self.x, self.w = case.random((rows, k), dtype), case.random((groups, n, k), dtype)

    def grouped_matmul(self):
        self.out = torch._grouped_mm(self.x, self.w.transpose(-2, -1), offs=self.ends)


class ScaledGroupedMm(GroupedMm):
    NAME = "torch scaled_grouped_mm, CUDA graph"
    ABOUT = "torch._scaled_grouped_mm of e4m3 with a scale of each row of both; results are bf16"

    def operands(self, case, dtype):
        if dtype != torch.float8_e4m3fn or case.asked.get("scales") != "row":
            raise Unsupported("elements other than fp8 with a scale of each row")
        groups, rows, n, k = self.of
        self.x, self.w = (case.random(shape, torch.bfloat16).to(dtype) for shape in ((rows, k), (groups, n, k)))
        self.scales = [torch.ones(shape, dtype=torch.float32, device="cuda") for shape in ((rows,), (groups, n))]

    def grouped_matmul(self):
        self.out = torch._scaled_grouped_mm(
            self.x, self.w.transpose(-2, -1), *self.scales, offs=self.ends, out_dtype=torch.bfloat16
        )


if __name__ == "__main__":
    # All cases are of one product, whose name is its metric's and that of the method.
    with open(sys.argv[1], encoding="utf-8") as request:
        product = json.load(request)["cases"][0]["family"]
    known = {"matmul": [Cublas, CublasEager, ScaledMm], "grouped_matmul": [GroupedMm, ScaledGroupedMm]}
    baselines = known.get(product, [Cublas, CublasAlone, CublasEager, AsyncTp])
    main([(baseline.NAME, lambda baseline=baseline: baseline) for baseline in baselines], [product])
