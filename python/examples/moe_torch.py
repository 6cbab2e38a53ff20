"""A mixture-of-experts transformer on the GPUs of a machine, and what moving its tokens costs.

    torchrun --nproc-per-node 2 moe_torch.py
    torchrun --nproc-per-node 2 moe_torch.py --cpu      # without GPUs: by PyTorch alone, to see that the losses agree

Every rank has sequences of its own and a share of the experts. A layer is attention and experts; four ways bring tokens to the
ranks of their experts and back: Peerwarp's dispatch and combine, its whole layers, NCCL's all-to-all, and all-gather with
reduce-scatter, which computes on what it gathers.
Each runs forward in a CUDA graph, its loss is compared with that of one GPU that has all tokens and all experts, and tokens a
second are printed.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import peerwarp


@dataclass(frozen=True)
class Shape:
    """Of a model, and of a batch."""

    hidden: int
    inner: int
    heads: int
    experts: int
    topk: int
    layers: int
    tokens: int
    sequence: int


class Layer:
    """Weights of a layer: the same on all ranks, but for the experts, of which a rank has those from `first` on."""

    def __init__(self, shape: Shape, number: int, first: int, own: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(number)

        def drawn(*sizes: int) -> Tensor:
            scale = sizes[-2] ** -0.5
            return (torch.randn(*sizes, generator=generator) * scale).to(device, torch.bfloat16)

        h, f = shape.hidden, shape.inner
        self.qkv, self.out, self.router = drawn(h, 3 * h), drawn(h, h), drawn(h, shape.experts)
        up, down = drawn(shape.experts, h, 2 * f), drawn(shape.experts, f, h)
        self.up, self.down = up[first : first + own].contiguous(), down[first : first + own].contiguous()


def normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def attention(x: Tensor, layer: Layer, shape: Shape) -> Tensor:
    """Of tokens with those before them in their sequence."""
    q, k, v = (normed(x) @ layer.qkv).view(-1, shape.sequence, 3, shape.heads, shape.hidden // shape.heads).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(x.shape) @ layer.out


def routed(x: Tensor, layer: Layer, shape: Shape) -> tuple[Tensor, Tensor]:
    """Ids of the experts of each token, int32, and weights that sum to one, float32."""
    scores, ids = (x @ layer.router).float().topk(shape.topk, dim=1)
    return ids.to(torch.int32), scores.softmax(1)


@dataclass
class Received:
    """Rows that came to a rank, and for each `topk` ids among its own experts (-1: another's) and weights.

    `gather` has the numbers of the rows of its experts, expert by expert, and then anything; `ends` where each expert's part ends.
    """

    rows: Tensor
    ids: Tensor
    weights: Tensor
    gather: Tensor
    ends: Tensor


def indexed(rows: Tensor, ids: Tensor, weights: Tensor, experts: int) -> Received:
    """What came, sorted by expert."""
    flat = ids.flatten().long()
    order = torch.where(flat < 0, experts, flat).argsort(stable=True)
    counts = (flat == torch.arange(experts, device=flat.device).unsqueeze(1)).sum(1)
    return Received(rows, ids, weights, order.div(ids.shape[1], rounding_mode="floor"), counts.cumsum(0).to(torch.int32))


def expert_outputs(x: Tensor, layer: Layer, ends: Tensor) -> Tensor:
    """What experts make of rows that stand expert by expert."""
    if x.is_cuda:
        gate, up = torch._grouped_mm(x, layer.up, offs=ends).chunk(2, dim=1)
        return torch._grouped_mm(F.silu(gate) * up, layer.down, offs=ends)
    made = torch.zeros(len(x), layer.down.shape[2], dtype=x.dtype)
    for number, (start, end) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
        gate, up = (x[start:end] @ layer.up[number]).chunk(2, dim=1)
        made[start:end] = (F.silu(gate) * up) @ layer.down[number]
    return made


def experts(got: Received, layer: Layer) -> Tensor:
    """For each row the sum of what this rank's experts make of it, weighted. Shapes are those of all that could come, so that a
    graph may hold it; what is behind the last expert's part is left out at the end."""
    places, topk = got.ids.shape
    row = got.gather.long().clamp(0, places - 1)
    at = torch.arange(len(row), device=row.device, dtype=torch.int32)
    expert = torch.searchsorted(got.ends, at, right=True)
    made = expert_outputs(got.rows[row], layer, got.ends)
    entry = (got.ids[row] == expert.unsqueeze(1)).int().argmax(1)
    # Every entry has a place of its own: sums have the same order in each run.
    place = torch.where(at < got.ends[-1], row * topk + entry, places * topk)
    each = torch.zeros(places * topk + 1, made.shape[1], dtype=torch.float32, device=made.device)
    each.index_put_((place,), made.float())
    weights = got.weights.masked_fill(got.ids < 0, 0).unsqueeze(2)
    return (each[:-1].view(places, topk, -1) * weights).sum(1).to(torch.bfloat16)


class Way(Protocol):
    """How tokens come to the ranks of their experts, and back."""

    def moe(self, x: Tensor, ids: Tensor, weights: Tensor, layer: Layer) -> Tensor: ...


class Alone:
    """One GPU that has all experts."""

    def __init__(self, shape: Shape) -> None:
        self.experts = shape.experts

    def moe(self, x: Tensor, ids: Tensor, weights: Tensor, layer: Layer) -> Tensor:
        return experts(indexed(x, ids, weights, self.experts), layer)


class Peerwarp:
    """Dispatch and combine. What came is indexed already."""

    def __init__(self, shape: Shape) -> None:
        self.world = peerwarp.World.from_torch()
        sizes = {"hidden": shape.hidden, "experts": shape.experts, "topk": shape.topk, "max_tokens": shape.tokens}
        self.op = peerwarp.MoeAllToAll(self.world, **sizes)

    def moe(self, x: Tensor, ids: Tensor, weights: Tensor, layer: Layer) -> Tensor:
        d = self.op.dispatch(x, ids, weights)
        y = experts(Received(d.rows, d.local_ids, d.weights, d.gather, d.expert_start[1:]), layer)
        return self.op.combine(d, y)


class WholeLayer:
    """Both with the experts between them: one launch, or four, as is faster."""

    def __init__(self, shape: Shape) -> None:
        self.world, of = peerwarp.World.from_torch(), shape
        self.sizes = dict(hidden=of.hidden, inter=of.inner, experts=of.experts, topk=of.topk, max_tokens=of.tokens)
        self.made: dict[Layer, peerwarp.MoeLayer] = {}

    def moe(self, x: Tensor, ids: Tensor, weights: Tensor, layer: Layer) -> Tensor:
        if layer not in self.made:
            gate, up = layer.up.transpose(1, 2).chunk(2, dim=1)
            given = peerwarp.MoeWeights.of_experts(gate, up, layer.down.transpose(1, 2))
            # Layers share kernels and memory.
            one = next(iter(self.made.values()), None)
            self.made[layer] = one.with_weights(given) if one else peerwarp.MoeLayer(self.world, **self.sizes, weights=given)
        return self.made[layer](x, ids, weights)


class Collective:
    """What ways by PyTorch's collectives share."""

    def __init__(self, shape: Shape) -> None:
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        self.own = shape.experts // self.ranks

    def local(self, ids: Tensor) -> Tensor:
        """Ids among this rank's experts."""
        own = ids - self.rank * self.own
        return own.masked_fill((own < 0) | (own >= self.own), -1)


class GatherScatter(Collective):
    """All ranks get all tokens, and sums go back: what engines do unless they are told otherwise."""

    def gathered(self, own: Tensor) -> Tensor:
        every = own.new_empty((self.ranks * len(own), *own.shape[1:]))
        dist.all_gather_into_tensor(every, own)
        return every

    def moe(self, x: Tensor, ids: Tensor, weights: Tensor, layer: Layer) -> Tensor:
        rows, ids, weights = (self.gathered(one) for one in (x, ids, weights))
        y = experts(indexed(rows, self.local(ids), weights, self.own), layer)
        out = torch.empty_like(x)
        dist.reduce_scatter_tensor(out, y)
        return out


class AllToAll(Collective):
    """A place for each token on each rank, whether it goes there or not: sizes are known beforehand, as a graph needs it."""

    def exchanged(self, parts: Tensor) -> Tensor:
        got = torch.empty_like(parts)
        dist.all_to_all_single(got, parts)
        return got

    def moe(self, x: Tensor, ids: Tensor, weights: Tensor, layer: Layer) -> Tensor:
        every = [one.repeat(self.ranks, 1) for one in (x, ids, weights)]
        rows, ids, weights = (self.exchanged(one) for one in every)
        y = experts(indexed(rows, self.local(ids), weights, self.own), layer)
        return self.exchanged(y).view(self.ranks, *x.shape).float().sum(0).to(x.dtype)


def forward(x: Tensor, layers: list[Layer], way: Way, shape: Shape) -> Tensor:
    for layer in layers:
        x = x + attention(x, layer, shape)
        inner = normed(x)
        x = x + way.moe(inner, *routed(inner, layer, shape), layer)
    return x


def batch(shape: Shape, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A rank's tokens, and what they should become."""
    generator = torch.Generator().manual_seed(1000 + rank)
    drawn = torch.randn(2, shape.tokens, shape.hidden, generator=generator).to(device, torch.bfloat16)
    return drawn[0], drawn[1]


def loss_of(out: Tensor, wanted: Tensor) -> float:
    return F.mse_loss(out.float(), wanted.float()).item()


def alone(shape: Shape, ranks: int, device: torch.device) -> tuple[float, Tensor]:
    """The loss of one GPU that has the tokens of all ranks, and what comes out."""
    layers = [Layer(shape, number, 0, shape.experts, device) for number in range(shape.layers)]
    tokens, wanted = (torch.cat(part) for part in zip(*(batch(shape, rank, device) for rank in range(ranks)), strict=True))
    out = forward(tokens, layers, Alone(shape), shape)
    return loss_of(out, wanted), out


def graphed(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A forward pass as a CUDA graph: how it is launched, and where its result is."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph.replay, out


def microseconds(launch: Callable[[], None]) -> float:
    """Of a launch, in the median. One before those that are timed lets ranks begin together."""
    took = []
    for _ in range(9):
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        launch()
        start.record()
        for _ in range(10):
            launch()
        end.record()
        torch.cuda.synchronize()
        took.append(start.elapsed_time(end) * 100)
    return statistics.median(took)


def arguments() -> tuple[Shape, bool]:
    parser = argparse.ArgumentParser(description="A mixture-of-experts transformer on the GPUs of a machine.")
    parser.add_argument("--cpu", action="store_true", help="PyTorch's collectives alone, on the CPU")
    sizes = {"hidden": 2048, "inner": 1024, "heads": 16, "experts": 32, "topk": 4, "layers": 4, "tokens": 128, "sequence": 32}
    few = {"hidden": 64, "inner": 32, "heads": 2, "experts": 8, "topk": 2, "layers": 2, "tokens": 16, "sequence": 8}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, help=f"{size} unless said, {few[name]} on the CPU")
    given = parser.parse_args()
    defaults = few if given.cpu else sizes
    shape = Shape(**{name: getattr(given, name) or size for name, size in defaults.items()})
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks < 2:
        parser.error("ranks are started by torchrun: torchrun --nproc-per-node 2 moe_torch.py")
    for what, size, of in (
        ("experts", shape.experts, ranks),
        ("tokens", shape.tokens, shape.sequence),
        ("hidden", shape.hidden, 8 * shape.heads),
    ):
        if size % of:
            parser.error(f"--{what} {size}: {of} has to divide it")
    return shape, given.cpu


def main() -> None:
    shape, cpu = arguments()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu") if cpu else torch.device("cuda", local)
    if not cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if cpu else "cpu:gloo,cuda:nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = shape.experts // ranks
    layers = [Layer(shape, number, rank * own, own, device) for number in range(shape.layers)]
    tokens, wanted = batch(shape, rank, device)
    loss_wanted, every = alone(shape, ranks, device)
    out_wanted = every[rank * shape.tokens : (rank + 1) * shape.tokens]
    ways: dict[str, type] = {} if cpu else {"Peerwarp": Peerwarp, "Peerwarp, whole layers": WholeLayer}
    ways |= {"all-to-all": AllToAll, "all-gather + reduce-scatter": GatherScatter}
    if rank == 0:
        print(f"{shape}, {ranks} ranks; loss of one with all tokens: {loss_wanted:.6f}", flush=True)
    wrong = False
    for name, kind in ways.items():
        way = kind(shape)
        run = lambda way=way: forward(tokens, layers, way, shape)  # noqa: E731
        launch, out = (None, run()) if cpu else graphed(run)
        if launch is not None:
            launch()
        found = torch.tensor([loss_of(out, wanted), ((out - out_wanted).float().norm() / out_wanted.float().norm()).item()])
        dist.all_reduce(found)
        loss, off = (found / ranks).tolist()
        # Sums in another order may give a token another expert, which is a few percent; rows that went astray are far more.
        differs = not (abs(loss - loss_wanted) < 5e-3 * loss_wanted and off < 0.1)
        wrong |= differs
        said = f"{name:28} loss {loss:.6f}, results {100 * off:.2f}% off{'  WRONG' if differs else ''}"
        if launch is not None:
            us = torch.tensor([microseconds(launch)], dtype=torch.float64)
            dist.all_reduce(us, op=dist.ReduceOp.MAX)
            said += f"  {us.item() / shape.layers:8.1f} us a layer  {ranks * shape.tokens / us.item() * 1e6:12.0f} tokens/s"
        if rank == 0:
            print(said, flush=True)
        # NCCL ends a process group only when no graph has its launches any more.
        del launch, run, out, way
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        raise SystemExit("a loss differs from that of one GPU")


if __name__ == "__main__":
    main()
