"""Emitted products of matrices beside cuBLAS, on one GPU: whether they are right, and how long they take.

    peerwarp generate --family matmul --target cuda:sm_90a --out FOLDER m=4096 n=7168 k=4096 ranks=2 dtype=bf16
    python3 bench/baselines/matmul.py RESULT.json FOLDER..

Every kernel of the folders is run on small whole numbers, whose products are exact, and compared with products in f64. Then all
kernels of a shape take turns with cuBLAS: a CUDA graph holds one product of each of several sets of matrices, more than the
cache holds, and a figure is the median of its replays.
"""

import ctypes
import json
import re
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import emitted
import torch

REPLAYS = 15
WARMUP = 2
# Bytes of matrices that are gone through before one is used again.
CYCLE = 512 << 20
ACTIVATIONS = {"none": lambda x: x, "relu": torch.relu, "silu": torch.nn.functional.silu}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Shape:
    """What a kernel's name says that it is for."""

    def __init__(self, name):
        found = re.match(r"matmul_m(\d+)_n(\d+)_k(\d+)_r\d+_(bf16|fp16)_(b|nob)_(\w+?)__(\w+)$", name)
        if not found:
            raise emitted.EmittedError(f"{name}: not a name of the family matmul")
        self.m, self.n, self.k = map(int, found.groups()[:3])
        self.dtype, self.bias, self.activation, self.tuning = DTYPES[found[4]], found[5] == "b", found[6], found[7]

    @property
    def key(self):
        return self.m, self.n, self.k, str(self.dtype)


class Product:
    """A kernel with its own status record, ready to be launched on matrices."""

    def __init__(self, kernel, library):
        self.kernel, self.shape = kernel, Shape(kernel.name)
        self.entry = emitted.Entry(kernel, library)
        self.status = torch.zeros(ctypes.sizeof(emitted.Status), dtype=torch.uint8, device="cuda")
        self.next_tile = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.resident = self.entry.resident_blocks()

    def args(self, x, w, out, bias=None):
        args = self.kernel.Args(wait_budget_ns=10**9, rank=0)
        args.x, args.w, args.out = x.data_ptr(), w.data_ptr(), out.data_ptr()
        if bias is not None:
            args.bias = bias.data_ptr()
        if hasattr(args, "next_tile"):  # with order=counter
            args.next_tile = self.next_tile.data_ptr()
        for rank in range(self.kernel.ranks):
            args.status[rank] = self.status.data_ptr()
        return args

    def launch(self, args):
        self.entry.launch(args, torch.cuda.current_stream().cuda_stream)

    def wrong(self):
        """How many elements differ, of small whole numbers written over NaNs, in three runs."""
        s = self.shape
        small = lambda *shape: torch.randint(-3, 4, shape, device="cuda").to(s.dtype)  # noqa: E731
        x, w, bias = small(s.m, s.k), small(s.n, s.k), small(s.n) if s.bias else None
        sums = x.double() @ w.double().T
        if s.bias:
            sums += bias.double()
        right = ACTIVATIONS[s.activation](sums.float()).to(s.dtype)
        wrong = 0
        for _ in range(3):
            out = torch.full((s.m, s.n), float("nan"), dtype=s.dtype, device="cuda")
            self.launch(self.args(x, w, out, bias))
            torch.cuda.synchronize()
            # An activation is rounded in its own ways, products are not.
            near = out.float() - right.float()
            allowed = right.float().abs() / 64 if s.activation == "silu" else torch.zeros_like(near)
            wrong += int((~(near.abs() <= allowed)).sum())
        return wrong


def graph_of(steps):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    return graph


def times(products):
    """Microseconds of each kernel of a shape, and of cuBLAS, by name."""
    s = products[0].shape
    size = 2 * (s.m * s.k + s.n * s.k + s.m * s.n)
    sets = max(3, min(16, CYCLE // size))
    make = lambda *shape: torch.randn(shape, device="cuda").to(s.dtype)  # noqa: E731
    data = [(make(s.m, s.k), make(s.n, s.k), make(s.m, s.n)) for _ in range(sets)]
    bias = make(s.n)
    graphs, kept = {}, []

    def cublas(x, w, out):
        torch.mm(x, w.T, out=out)

    for x, w, out in data:
        cublas(x, w, out)
    graphs["cuBLAS"] = graph_of([lambda d=d: cublas(*d) for d in data])
    for product in products:
        args = [product.args(*d, bias if product.shape.bias else None) for d in data]
        kept.append(args)
        product.launch(args[0])
        graphs[product.shape.tuning] = graph_of([lambda a=a, p=product: p.launch(a) for a in args])
    found = {name: [] for name in graphs}
    for turn in range(WARMUP + REPLAYS):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(1_000_000)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if turn >= WARMUP:
                found[name].append(start.elapsed_time(end) * 1e3 / sets)
    return {name: statistics.median(us) for name, us in found.items()}


def main(result, *folders):
    everything = [(emitted.Emitted(folder), entry) for folder in folders for entry in emitted.Emitted(folder).entries]
    kernels = [emitted.Kernel(of.folder, entry) for of, entry in everything if entry["family"] == "matmul"]
    nvcc = emitted.Nvcc()
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor() as pool:
        built = pool.map(lambda kernel: nvcc.library([kernel], cache), kernels)
        products = [Product(kernel, ctypes.CDLL(str(path))) for kernel, path in zip(kernels, built)]
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "nvcc": nvcc.release, "shapes": []}
    shapes = {}
    for product in products:
        wrong = product.wrong()
        print(f"{product.kernel.name}: {wrong} elements wrong", flush=True)
        shapes.setdefault(product.shape.key, []).append((product, wrong))
    for (m, n, k, dtype), of_shape in shapes.items():
        us = times([product for product, _ in of_shape])
        print(f"{m} {n} {k} {dtype}:", {name: round(t, 1) for name, t in us.items()}, flush=True)
        wrong = {product.shape.tuning: wrong for product, wrong in of_shape}
        report["shapes"].append({"m": m, "n": n, "k": k, "dtype": dtype, "wrong": wrong, "us": us})
        Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")
    raise SystemExit(any(wrong for of_shape in shapes.values() for _, wrong in of_shape))


if __name__ == "__main__":
    main(*sys.argv[1:])
