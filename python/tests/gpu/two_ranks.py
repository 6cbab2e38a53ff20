"""Collectives and MoE on GPUs, from PyTorch, against a plain reference. Two processes, which share the GPU where there is one:

torchrun --nproc-per-node 2 python/tests/gpu/two_ranks.py [PART ..]

PART: behaviours, collectives, moe, formats, quantised, layouts, whole_layers, halves, faults, overlap, compiled, gradients,
operations, host_times; all of them if none is named. `operations` needs a pack of examples/kernels, which PEERWARP_TEST_KERNELS
names.

Each part prints what was found up to then; the first that fails ends all of them.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from two_moe import (
    EXPERTS,
    FOUND,
    HIDDEN,
    TOKENS,
    TOPK,
    close,
    drawn,
    formats,
    halves,
    layouts,
    moe,
    of_all_ranks,
    quantised,
    rank_major,
    reference,
    refused,
    tokens,
)

import peerwarp
import peerwarp.torch as pt

# The cases of both worlds stand beside the tests of simulated ranks.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def expected(name: str, x: torch.Tensor) -> torch.Tensor:
    """What a collective yields, in plain PyTorch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    vectors = of_all_ranks(x)
    total = vectors[0].float()
    for vector in vectors[1:]:
        total = total + vector.float()
    if name == "all_reduce":
        return total.to(x.dtype)
    if name == "reduce_scatter":
        return total.to(x.dtype).chunk(ranks)[rank]
    if name == "all_gather":
        return torch.cat(vectors)
    if name == "all_to_all":
        return torch.cat([vector.chunk(ranks)[rank] for vector in vectors])
    return vectors[1]


class OnGpus:
    """Ranks on GPUs, as `behaviours` has worlds: calls take this rank's tensor."""

    def __init__(self, world: peerwarp.World) -> None:
        self.world = world

    def given(self, arrays: list[Any]) -> torch.Tensor:
        return torch.from_numpy(arrays[dist.get_rank()]).cuda()

    def each(self, value: torch.Tensor, act: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return act(value)

    def kept(self, value: torch.Tensor) -> list[Any]:
        return [one.cpu().numpy() for one in of_all_ranks(value)]


def behaviours(world: peerwarp.World) -> None:
    """The cases that simulated ranks run, too, with what is recorded of them."""
    from behaviours import CASES, RECORDED, outcome

    for name in CASES:
        found = json.loads(json.dumps(outcome(name, OnGpus(world))))
        assert found == RECORDED[name], (name, found, RECORDED[name])
    FOUND["behaviours"] = len(CASES)


def collectives(world: peerwarp.World) -> None:
    all_of = peerwarp.Collectives(world)
    ops: dict[str, Callable[..., torch.Tensor]] = {
        "all_reduce": all_of.all_reduce,
        "reduce_scatter": all_of.reduce_scatter,
        "all_gather": all_of.all_gather,
        "all_to_all": all_of.all_to_all,
        "broadcast": lambda x, out=None: all_of.broadcast(x, 1, out=out),
    }
    cases = 0
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for elements in (2, 1006, 65_536):
            for name, op in ops.items():
                # One after the other, without a wait in between.
                inputs = [drawn(seed, elements, dtype=dtype) for seed in range(3)]
                results = [op(x) for x in inputs]
                for x, result in zip(inputs, results, strict=True):
                    wanted = expected(name, x)
                    assert torch.equal(result, wanted), (name, dtype, elements)
                out = torch.empty_like(results[0])
                assert op(inputs[0], out=out) is out
                assert torch.equal(out, results[0]), name
                cases += 1
    graphed(all_of)
    FOUND["collectives"] = cases
    FOUND["uneven"] = uneven(all_of)
    FOUND["freed"] = freed(all_of)


def uneven(all_of: peerwarp.Collectives) -> int:
    """Lengths of ranks' own, which the host or the GPU says, there also in a graph."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    cases = 0
    for hidden in (3, 64):
        for sizes in ([0, 5], [130, 1], [7, 0], [9, 9]):
            sizes = (sizes * ranks)[:ranks]
            longest = drawn(cases, max(sizes) * hidden).view(-1, hidden)
            wanted = torch.cat([one[:size] for one, size in zip(of_all_ranks(longest), sizes, strict=True)])
            x = longest[: sizes[rank]].clone()
            assert torch.equal(all_of.all_gather(x, sizes=sizes), wanted), (hidden, sizes)
            # Every rank has a multiple of what all have: their sum is exact.
            share = wanted.round() * (rank + 1)
            sums = wanted.round() * (ranks * (ranks + 1) // 2)
            part = all_of.reduce_scatter(share, sizes=sizes)
            assert torch.equal(part, sums.split(sizes)[rank]), (hidden, sizes)
            cases += 2
    n = torch.zeros(ranks, dtype=torch.int32, device="cuda")
    x, out = torch.empty(16, 64, device="cuda"), torch.empty(16 * ranks, 64, device="cuda")
    all_of.all_gather(x, sizes=n, max_size=16, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of.all_gather(x, sizes=n, max_size=16, out=out)
    for sizes in ([1, 16], [0, 0], [16, 3], [40, 2]):
        sizes = (sizes * ranks)[:ranks]
        x.copy_(drawn(sum(sizes), 16 * 64).view(16, 64))
        n.copy_(torch.tensor(sizes, dtype=torch.int32))
        out.fill_(-1)
        graph.replay()
        wanted = torch.cat([one[:size] for one, size in zip(of_all_ranks(x), sizes, strict=True)])
        assert torch.equal(out[: len(wanted)], wanted), sizes
        assert (out[len(wanted) :] == -1).all(), sizes
        cases += 1
    return cases


def freed(all_of: peerwarp.Collectives) -> list[int]:
    """Lengths of one capacity have one operation, which is freed."""
    all_of.free()
    left = all_of.memory_bytes
    for elements in (1025, 1500, 2048):
        x = drawn(elements, elements)
        assert torch.equal(all_of.all_reduce(x), expected("all_reduce", x)), elements
        if elements == 1025:
            one = all_of.memory_bytes
    assert left == 0 < one == all_of.memory_bytes
    return [left, one]


def graphed(all_of: peerwarp.Collectives) -> None:
    """An all-reduce in a CUDA graph, whose input changes from launch to launch."""
    x, out = torch.empty(1024, device="cuda"), torch.empty(1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        all_of.all_reduce(x, out=out)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of.all_reduce(x, out=out)
        all_of.all_reduce(out, out=x)
    for seed in range(3):
        given = drawn(seed, 1024)
        x.copy_(given)
        graph.replay()
        torch.cuda.synchronize()
        first = expected("all_reduce", given)
        assert torch.equal(out, first)
        assert torch.equal(x, first * 2)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            all_of.all_reduce(torch.empty(77_000, device="cuda"))
    except peerwarp.PeerwarpError as error:
        assert "cannot be captured" in str(error), error
    else:
        raise AssertionError("memory was allocated while a graph was captured")
    torch.cuda.synchronize()


def faults(world: peerwarp.World) -> None:
    """A rank that waits in vain says so on all of them; after a reset the world goes on."""
    op = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS)
    x, ids, weights = tokens(160, TOKENS)
    word = world.fault
    assert int(word) == 0
    close(op.combine((d := op.dispatch(x, ids, weights)), rank_major(d)), reference(x, ids, weights))
    dist.barrier()
    op.set_wait_budget(0.2)
    if dist.get_rank() == 0:
        d = op.dispatch(x, ids, weights)
        torch.cuda.synchronize()
        assert int(word) == 1, "rank 0 gave up"
    dist.barrier()
    assert int(word) == 1, "on all ranks"
    try:
        world.check()
    except peerwarp.Aborted as error:
        assert error.rank == 0, error
        FOUND["fault"] = str(error)
    else:
        raise AssertionError("no rank said that the world was aborted")
    dist.barrier()
    world.reset()
    assert int(word) == 0
    op.set_wait_budget(20.0)
    for seed in (161, 162, 163):
        x, ids, weights = tokens(seed, TOKENS)
        close(op.combine((d := op.dispatch(x, ids, weights)), rank_major(d)), reference(x, ids, weights))
    del word


def overlap(world: peerwarp.World) -> None:
    """Two operations of a world in turn, on one stream: the second sends before the first's rows have gone home."""
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "max_tokens": TOKENS}
    ops = [peerwarp.MoeAllToAll(world, **sizes) for _ in range(2)]
    given = [tokens(170 + at, TOKENS) for at in range(2)]
    outs = [torch.empty_like(x) for x, _, _ in given]
    for _ in range(50):
        d = [op.dispatch(*one) for op, one in zip(ops, given, strict=True)]
        for at in range(2):
            ops[at].combine(d[at], rank_major(d[at]), out=outs[at])
    torch.cuda.synchronize()
    # Where a wait ran out of time, nothing was written.
    world.check()
    for out, one in zip(outs, given, strict=True):
        close(out, reference(*one))
    FOUND["overlap"] = "two operations in turn, 50 rounds each"


def compiled(world: peerwarp.World) -> None:
    """Operations of PyTorch: checked by PyTorch, and compiled without a break."""
    all_of = peerwarp.Collectives(world)
    h = pt.handle(all_of)
    x, out = drawn(40, 256), torch.empty(256, device="cuda")
    torch.ops.peerwarp.all_reduce(x, out, h, "sum")
    torch.library.opcheck(torch.ops.peerwarp.all_reduce.default, (x, out, h, "sum"))
    op = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS)
    m, left = pt.handle(op), pt.buffers(op)

    def layer(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        torch.ops.peerwarp.moe_dispatch(x, ids, weights, None, left, m)
        rows, local = left[0], left[pt.BUFFERS.index("ids") - 1]
        y = (rows * 2).masked_fill((local < 0).all(1, keepdim=True), 0)
        out = torch.empty_like(x)
        torch.ops.peerwarp.moe_combine(y, ids, weights, out, left, m)
        total = torch.empty(x.numel(), dtype=torch.float32, device=x.device)
        torch.ops.peerwarp.all_reduce(out.flatten().float(), total, h, "sum")
        return total

    for backend in ("eager", "aot_eager"):
        run = torch.compile(layer, backend=backend, fullgraph=True)
        for seed in (41, 42):
            given = tokens(seed, TOKENS)
            plain, fast = layer(*given), run(*given)
            assert torch.equal(plain, fast), backend
    FOUND["compiled"] = ["opcheck of all_reduce", "eager", "aot_eager"]


def gradients(world: peerwarp.World) -> None:
    """A layer with weights of its own, forward and backward, against the same on one rank."""
    op = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS)
    x, ids, weights = tokens(80, TOKENS)
    x.requires_grad_()
    round_ = pt.Round(op, ids, weights)
    rows = round_.dispatch(x)
    d = round_.dispatched
    factor = (d.weights * (1 + d.ids % 4)).masked_fill(d.ids < 0, 0).sum(1, keepdim=True)
    out = round_.combine((rows.float() * factor).to(torch.bfloat16))
    grad = drawn(81, TOKENS, HIDDEN, dtype=torch.bfloat16)
    out.backward(grad)
    alone = torch.where(ids >= 0, weights * (1 + ids % 4), 0).sum(1, keepdim=True)
    close(out.detach(), x.detach().float() * alone)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.float(), grad.float() * alone, rtol=3e-2, atol=6e-2)
    FOUND["gradients"] = True


def kernels() -> peerwarp.Pack:
    return peerwarp.Pack.open(os.environ["PEERWARP_TEST_KERNELS"])


def pushed(world: peerwarp.World) -> None:
    """Pages of a KV cache, pushed into memory that the other rank owns: in calls and in a graph."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    requests, most, pages, page = 16, 128, 4096, 32768
    push = kernels().operation("kv_push", world, page=page, pool=pages, requests=requests, max_pages=most)
    pool = world.empty((pages, page), "bf16")
    lower, words = pages // 2, torch.arange(page, dtype=torch.int32, device="cuda")

    def content(of: int, turn: int, rows: torch.Tensor) -> torch.Tensor:
        first = (rows.int() * 7919 + of * 104729 + turn * 1299709).cuda()
        return ((first[:, None] + words) * 40503 >> 8).to(torch.int16)

    for turn in range(6):
        # The same plan on all ranks. Pages of lower halves become pages of upper ones, each once.
        seeded = torch.Generator().manual_seed(270 + turn)
        start = torch.randint(ranks, (requests,), generator=seeded)
        there, count = (start + 1) % ranks, torch.randint(most + 1, (requests,), generator=seeded)
        source = torch.randint(lower, (requests, most), generator=seeded)
        target = lower + torch.randperm(lower, generator=seeded)[: requests * most].view(requests, most)
        plan = {"source": start, "target": there, "pages": count, "source_pages": source, "target_pages": target}
        passed = {name: table.int().view(-1).cuda() for name, table in plan.items()}
        passed |= {"pool": pool.view(-1), "arrived": torch.full((requests,), -1, dtype=torch.int32, device="cuda")}
        bits = pool.view(torch.int16)
        for first in range(0, pages, 1024):
            bits[first : first + 1024] = content(rank, turn, torch.arange(first, first + 1024))
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        if turn < 5:
            push(**passed)
        else:
            with torch.cuda.graph(graph):
                push(**passed)
            for _ in range(20):
                graph.replay()
        torch.cuda.synchronize()
        untouched = torch.ones(pages, dtype=torch.bool)
        for i in range(requests):
            if there[i] == rank:
                came = target[i, : count[i]]
                untouched[came] = False
                assert torch.equal(bits[came.cuda()], content(int(start[i]), turn, source[i, : count[i]])), f"kv_push, turn {turn}"
        own = untouched.nonzero().view(-1)
        for rows in own.split(1024):
            assert torch.equal(bits[rows.cuda()], content(rank, turn, rows)), f"kv_push, turn {turn}"
        assert passed["arrived"].tolist() == torch.where(there == rank, count, 0).tolist()
        dist.barrier()


def multiplied() -> None:
    """A product with a bias, GELU and the largest element of each row, on one GPU."""
    alone = peerwarp.World.on_gpu()
    for m in (200, 4096):
        product = kernels().operation("matmul_gelu", alone, m=m, n=4096, k=4096)
        x, w = drawn(290, m, 4096, dtype=torch.bfloat16), drawn(291, 4096, 4096, dtype=torch.bfloat16) / 64
        bias = drawn(292, 4096, dtype=torch.bfloat16)
        out, most = torch.empty(m, 4096, dtype=torch.bfloat16, device="cuda"), torch.empty(m, dtype=torch.bfloat16, device="cuda")
        for _ in range(3):
            product(x=x, w=w, bias=bias, out=out, row_max=most)
        wanted = torch.nn.functional.gelu(x.float() @ w.float().T + bias.float())
        torch.testing.assert_close(out.float(), wanted, rtol=2e-2, atol=2e-2)
        assert torch.equal(most, out.amax(1)), "row_max"


def operations(world: peerwarp.World) -> None:
    """Kernels of another crate, and shipped ones: against PyTorch, in graphs, compiled, and what is refused."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ring = kernels().operation("ring_gather", world, elements=524288, dtype="f32")
    x, out = drawn(200, 524288), torch.empty(ranks, 524288, device="cuda")
    graph = torch.cuda.CUDAGraph()
    ring(x=x, out=out)
    with torch.cuda.graph(graph):
        ring(x=x, out=out)
    for seed in range(201, 221):
        x.copy_(drawn(seed, 524288))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, torch.stack(of_all_ranks(x))), "ring_gather"
    push, number = pt.define(ring), pt.handle(ring)
    torch.library.opcheck(getattr(torch.ops.peerwarp_ring_gather, ring.name).default, (x, out, number))

    def layer(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(ranks, x.numel(), device=x.device)
        push(x * 2, out, number)
        return out.sum(0)

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), layer(x))
    for tokens_, heads in ((64, 32), (4096, 32)):
        transpose = kernels().operation("ulysses", world, tokens=tokens_, heads=heads, dim=128)
        x = drawn(230, tokens_ // ranks, heads, 128, dtype=torch.bfloat16)
        out = torch.empty(tokens_, heads // ranks, 128, dtype=torch.bfloat16, device="cuda")
        for _ in range(20):
            out.zero_()
            transpose(x=x.view(-1), out=out.view(-1))
        assert torch.equal(out, torch.cat(of_all_ranks(x))[:, rank * heads // ranks : (rank + 1) * heads // ranks])
    pushed(world)
    multiplied()
    # What does not fit is named, and the next call is right.
    x, out = drawn(240, 524288), torch.empty(ranks, 524288, device="cuda")
    refused(lambda: ring(x=x), "out")
    refused(lambda: ring(x=x[:-4], out=out), "x.shape")
    refused(lambda: ring(x=x.half(), out=out), "x.dtype")
    refused(lambda: ring(x=x.cpu(), out=out), "x.device")
    refused(lambda: ring(x=torch.stack([x, x], 1)[:, 0], out=out), "x.strides")
    refused(lambda: ring(x=out.view(-1)[:524288], out=out), "memory of out")
    ring(x=x, out=out)
    assert torch.equal(out, torch.stack(of_all_ranks(x)))
    # Families of the package.
    a, w = drawn(250, 256, 512, dtype=torch.bfloat16), drawn(251, 384, 512, dtype=torch.bfloat16)
    product = torch.empty(256, 384, dtype=torch.bfloat16, device="cuda")
    peerwarp.operation("matmul", world, m=256, n=384, k=512, dtype="bf16")(x=a, w=w, out=product)
    torch.testing.assert_close(product, a @ w.T, rtol=2e-2, atol=2e-1)
    registered = peerwarp.operation("registered_all_reduce", world, elements=4096, dtype="f32")
    (window,) = registered.parameters
    mine = world.empty(4096, "f32")
    for seed in range(260, 270):
        mine.copy_(drawn(seed, 4096))
        dist.barrier()
        wanted = sum(of_all_ranks(mine))
        dist.barrier()
        registered(**{window.name: mine})
        torch.testing.assert_close(mine, wanted)
    refused(lambda: registered(**{window.name: torch.zeros(4096, device="cuda")}), f"memory of {window.name}")
    FOUND["operations"] = [
        "ring_gather in a graph and compiled",
        "ulysses",
        "kv_push",
        "matmul_gelu",
        "refusals",
        "matmul",
        "registered_all_reduce",
    ]


def host_times(world: peerwarp.World) -> None:
    """What a call takes the host, in microseconds: no call waits for the GPU in between."""
    ring = kernels().operation("ring_gather", world, elements=1000, dtype="f32")
    vector, gathered = drawn(91, 1000), torch.empty(dist.get_world_size(), 1000, device="cuda")
    op = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS)
    all_of = peerwarp.Collectives(world)
    x, ids, weights = tokens(90, TOKENS)
    d = op.dispatch(x, ids, weights)
    y, out, total = torch.zeros_like(d.rows), torch.empty_like(x), torch.empty_like(x)
    op.combine(d, y)
    all_of.all_reduce(x, out=total)
    torch.cuda.synchronize()
    dist.barrier()
    for name, call in (
        ("dispatch + combine", lambda: op.combine(op.dispatch(x, ids, weights), y, out=out)),
        ("all_reduce", lambda: all_of.all_reduce(x, out=total)),
        ("an operation of a pack", lambda: ring(x=vector, out=gathered)),
        ("an empty kernel of PyTorch", lambda: torch.cuda._sleep(0)),
    ):
        lasted = []
        for _ in range(15):
            # So few that the driver's queue has room for all of them.
            start = time.perf_counter()
            for _ in range(20):
                call()
            lasted.append((time.perf_counter() - start) / 20 * 1e6)
            torch.cuda.synchronize()
            dist.barrier()
        FOUND[f"host us, {name}"] = round(sorted(lasted)[len(lasted) // 2], 2)
        FOUND.update(launch_times(name, call))


def whole_layers(world: peerwarp.World) -> None:
    """Layers both ways, with tokens or without, as plain PyTorch computes them in float32, and the way that is chosen."""
    rank, experts, inter = dist.get_rank(), EXPERTS - 1, 256
    own = peerwarp.MoeLayer.experts_of(experts, dist.get_world_size(), rank)
    sizes = {"hidden": HIDDEN, "inter": inter, "experts": experts, "topk": TOPK, "max_tokens": TOKENS}
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        generator, is_fp8 = torch.Generator().manual_seed(7), dtype == torch.float8_e4m3fn
        shapes = (inter, HIDDEN), (inter, HIDDEN), (HIDDEN, inter)
        matrices = [(torch.randn(experts, *one, generator=generator) / one[1] ** 0.5).to(dtype).cuda() for one in shapes]
        scales = [torch.rand(experts, rows // 128, columns // 128, generator=generator).cuda() + 0.5 for rows, columns in shapes]
        x, of_x = drawn(1, TOKENS, HIDDEN).to(dtype), drawn(2, TOKENS, HIDDEN // 128).abs() + 0.5
        ids, weights = drawn(3, TOKENS, experts + 1).topk(TOPK).indices.int() - 1, drawn(4, TOKENS, TOPK).abs()
        ids[1] = -1
        part = slice(own.start, own.stop)
        given = peerwarp.MoeWeights.of_experts(
            *(one[part] for one in matrices), scales=[one[part] for one in scales] if is_fp8 else None
        )

        def widened(values: torch.Tensor, scales: torch.Tensor, rows: int, is_fp8: bool = is_fp8) -> torch.Tensor:
            blocks = scales.repeat_interleave(rows, -2).repeat_interleave(128, -1)
            return values.float() * blocks if is_fp8 else values.float()

        gate, up, down = (widened(one, of, 128) for one, of in zip(matrices, scales, strict=True))
        rows, wanted = widened(x, of_x, 1), torch.zeros(TOKENS, HIDDEN, device="cuda")
        for number in range(experts):
            share = (weights * (ids == number)).sum(1, keepdim=True)
            middle = torch.nn.functional.silu(rows @ gate[number].T) * (rows @ up[number].T)
            wanted += share * (middle @ down[number].T)
        for way in ("fused", "apart", None):
            layer = peerwarp.MoeLayer(world, **sizes, weights=given, way=way)
            FOUND[f"layer, {dtype}, {way}"] = layer.way, layer.memory_bytes, layer.kernels
            for n in (TOKENS, TOKENS - 20 * rank, (1 - rank) * TOKENS):
                sent = x[:n], ids[:n], weights[:n]
                out = layer(*sent, scales=of_x[:n] if is_fp8 else None)
                off = (out.float() - wanted[:n]).abs().amax() / wanted.abs().amax() if n else torch.zeros(())
                assert off < (0.05 if is_fp8 else 0.01), (dtype, way, n, off.item())
            del layer
        torch.cuda.synchronize()
        dist.barrier()


def launch_times(name: str, call: Callable[[], object]) -> dict[str, float]:
    """Medians of the way to the last of its launches by the driver and of that launch, where launch_probe.c is preloaded."""
    probe = ctypes.CDLL(None)
    if not hasattr(probe, "launch_entered"):
        return {}
    probe.launch_entered.restype = probe.launch_left.restype = ctypes.c_long
    before, inside = [], []
    for _ in range(15):
        for _ in range(20):
            start = time.perf_counter_ns()
            call()
            entered = probe.launch_entered()
            if entered < start:  # PyTorch finds its driver in another way
                return {}
            before.append(entered - start)
            inside.append(probe.launch_left() - entered)
        torch.cuda.synchronize()
        dist.barrier()
    median = [round(sorted(times)[len(times) // 2] / 1000, 2) for times in (before, inside)]
    return dict(zip((f"host us, to the driver, {name}", f"host us, in the driver, {name}"), median, strict=True))


ALL = (
    behaviours,
    collectives,
    moe,
    formats,
    quantised,
    layouts,
    whole_layers,
    halves,
    faults,
    overlap,
    compiled,
    gradients,
    operations,
    host_times,
)
PARTS = {part.__name__: part for part in ALL}


def main() -> None:
    local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    dist.init_process_group("gloo")
    world = peerwarp.World.from_torch(share_gpus=True, wait_budget=20.0)
    FOUND["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    for part in [PARTS[name] for name in sys.argv[1:] or PARTS]:
        start = time.perf_counter()
        part(world)
        torch.cuda.synchronize()
        world.check()
        FOUND[f"seconds, {part.__name__}"] = round(time.perf_counter() - start, 1)
        if dist.get_rank() == 0:
            print(json.dumps(FOUND), flush=True)
    torch._dynamo.reset()
    gc.collect()
    world.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
