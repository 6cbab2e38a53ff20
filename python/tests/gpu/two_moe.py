"""MoE on GPUs, from PyTorch, against a plain reference: parts of `two_ranks.py`, and what its other parts take from them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import peerwarp

HIDDEN, EXPERTS, TOPK, TOKENS = 512, 16, 4, 24
FOUND: dict[str, Any] = {}


def of_all_ranks(x: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks, by way of the host."""
    all_of_them: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, x.cpu())
    return [one.cuda() for one in all_of_them]


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    return torch.randn(*shape, generator=generator).to(dtype).cuda()


def refused(call: Callable[[], object], field: str) -> None:
    """Whether a call is refused, by the name of what is wrong."""
    try:
        call()
    except peerwarp.InvalidArgument as error:
        assert error.field.startswith(field), error
    else:
        raise AssertionError(f"{field} was not refused")


def tokens(seed: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, ids without repetition (some masked), and weights."""
    x = drawn(seed, n, HIDDEN, dtype=torch.bfloat16)
    scores = drawn(seed + 50, n, EXPERTS)
    ids = scores.topk(TOPK, 1).indices.to(torch.int32) if n else torch.empty(0, TOPK, dtype=torch.int32, device="cuda")
    ids = torch.where(drawn(seed + 60, n, TOPK) > 1.5, -1, ids).to(torch.int32).contiguous()
    return x, ids, drawn(seed + 70, n, TOPK).abs()


def expert(rows: torch.Tensor, number: int | torch.Tensor) -> torch.Tensor:
    """A stand-in expert: a factor that bf16 has exactly."""
    return rows.float() * (1 + number % 4)


def rank_major(d: peerwarp.DispatchedTensors) -> torch.Tensor:
    """The experts' work on rows that came: weighted, summed, rounded once."""
    y = torch.zeros_like(d.rows, dtype=torch.float32)
    ids, weights = d.ids, d.weights
    came = ids >= 0
    rows = d.rows.masked_fill(~came.any(1, keepdim=True), 0)
    for k in range(ids.shape[1]):
        one = expert(rows, ids[:, k : k + 1]) * weights[:, k : k + 1]
        y += one.masked_fill(~came[:, k : k + 1], 0)
    return y.to(torch.bfloat16)


def reference(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What comes back: of each owner a sum that is rounded, and their sum, rounded."""
    total = torch.zeros(x.shape, device="cuda")
    own = EXPERTS // dist.get_world_size()
    for rank in range(dist.get_world_size()):
        part = torch.zeros(x.shape, device="cuda")
        for k in range(TOPK):
            here = (ids[:, k] >= rank * own) & (ids[:, k] < (rank + 1) * own)
            part += torch.where(here[:, None], expert(x, ids[:, k : k + 1]) * weights[:, k : k + 1], 0)
        total += part.to(torch.bfloat16).float()
    return total.to(torch.bfloat16)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


def moe(world: peerwarp.World) -> None:
    op = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS)
    rank = dist.get_rank()
    for seed, n in enumerate((TOKENS, TOKENS - 5 * rank, 0 if rank else 3, TOKENS)):
        x, ids, weights = tokens(seed, n)
        d = op.dispatch(x, ids, weights)
        # Rows came as they were sent, to where they are told to be.
        for source, sent in enumerate(ragged_of_all(x)):
            part = slice(source * TOKENS, source * TOKENS + len(sent))
            came = (d.local_ids[part] >= 0).any(1)
            assert torch.equal(d.rows[part][came], sent[came]), (seed, source)
            assert int(d.tokens_from[source]) == len(sent)
        assert int((d.local_ids >= 0).sum()) == int(d.expert_rows.sum())
        out = op.combine(d, rank_major(d))
        assert out.shape == (n, HIDDEN)
        close(out, reference(x, ids, weights))
    refusals(op, d)
    moe_graph(op)
    ladder(world)
    FOUND["kernels"] = [origin for _, origin in op.kernels]
    FOUND["moe"] = "rank-major, bf16, ragged, in a graph"
    expert_major(world)
    world.check()


def ladder(world: peerwarp.World) -> None:
    """Capacities in turn, in one operation; another id of no expert; all by the native part alone."""
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "max_tokens": TOKENS}
    op = peerwarp.MoeAllToAll(world, **sizes, capacities=[4, 16], empty_id=EXPERTS)
    assert op.capacities == (4, 16, TOKENS)
    assert list(op.memory_bytes) == sorted(op.memory_bytes)
    device = op._device
    assert device is not None and device.device.exchange is not None, "PyTorch has no DLPack table"

    def slowly(*_: object) -> None:
        raise AssertionError("the native part did not take tensors that are as they have to be")

    device._dispatch_slowly = slowly  # type: ignore[method-assign, assignment]
    for seed, (n, capacity) in enumerate(((4, 4), (9, 16), (1, 4), (TOKENS, TOKENS), (16, 16))):
        x, ids, weights = tokens(60 + seed, n)
        d = op.dispatch(x, ids, weights, max_tokens=n)
        assert d.capacity == capacity
        assert len(d.rows) == capacity * dist.get_world_size()
        assert int((d.ids == EXPERTS).sum()) == d.ids.numel() - int(d.expert_rows.sum())
        here = torch.where(d.ids == EXPERTS, -1, d.ids)
        y = rank_major(types.SimpleNamespace(rows=d.rows, ids=here, weights=d.weights))  # type: ignore[arg-type]
        out = torch.empty_like(x)
        assert op.combine(d, y, out=out) is out
        close(out, reference(x, ids, weights))


def ragged_of_all(x: torch.Tensor) -> list[torch.Tensor]:
    return of_all_ranks(x)


def refusals(op: peerwarp.MoeAllToAll, d: peerwarp.DispatchedTensors) -> None:
    """Errors name the argument, and leave everything usable; all are found before anything is launched."""
    x, ids, weights = tokens(9, 2)
    y = torch.zeros_like(d.rows)
    for field, call in (
        ("d", lambda: op.combine(d, y)),
        ("x.dtype", lambda: op.dispatch(x.float(), ids, weights)),
        ("x.shape", lambda: op.dispatch(x.repeat(TOKENS, 1), ids, weights)),
        ("x.device", lambda: op.dispatch(x.cpu(), ids, weights)),
        ("ids.dtype", lambda: op.dispatch(x, ids.long(), weights)),
        ("ids.shape", lambda: op.dispatch(x, ids[:1], weights)),
        ("weights.strides", lambda: op.dispatch(x, ids, weights.t().contiguous().t())),
        ("scales", lambda: op.dispatch(x, ids, weights, scales=weights)),
    ):
        try:
            call()
        except peerwarp.InvalidArgument as error:
            assert error.field == field, (field, str(error))
        else:
            raise AssertionError(f"{field} was taken")


def moe_graph(op: peerwarp.MoeAllToAll) -> None:
    """A round in a CUDA graph, whose tokens change."""
    x, ids, weights = tokens(20, TOKENS)
    out = torch.empty_like(x)
    close(op.combine((d := op.dispatch(x, ids, weights)), rank_major(d)), reference(x, ids, weights))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = op.dispatch(x, ids, weights)
        op.combine(d, rank_major(d), out=out)
    for seed in range(21, 24):
        for into, one in zip((x, ids, weights), tokens(seed, TOKENS), strict=True):
            into.copy_(one)
        graph.replay()
        torch.cuda.synchronize()
        close(out, reference(x, ids, weights))


def expert_major(world: peerwarp.World) -> None:
    op = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS, layout="expert_major")
    for seed in (30, 31):
        x, ids, weights = tokens(seed, TOKENS)
        d = op.dispatch(x, ids, weights)
        y = torch.zeros_like(d.rows)
        for e, (start, count) in enumerate(zip(d.expert_start.tolist(), d.expert_rows.tolist(), strict=False)):
            y[start : start + count] = expert(d.rows[start : start + count], d.first_expert + e).to(torch.bfloat16)
        wanted = torch.zeros(x.shape, device="cuda")
        for k in range(TOPK):
            made = expert(x, ids[:, k : k + 1]) * weights[:, k : k + 1]
            wanted += torch.where(ids[:, k : k + 1] >= 0, made, 0)
        close(op.combine(d, y), wanted)
    FOUND["expert_major"] = True


#: Bytes of a row of `HIDDEN` elements, and scales of a row and their type.
FORMATS = {
    "fp8": (HIDDEN, HIDDEN // 128, torch.float32),
    "fp8-token": (HIDDEN, 1, torch.float32),
    "fp8-tensor": (HIDDEN, 0, torch.float32),
    "mxfp8": (HIDDEN, HIDDEN // 32, torch.uint8),
    "nvfp4": (HIDDEN // 2, HIDDEN // 16, torch.uint8),
    "mxfp4": (HIDDEN // 2, HIDDEN // 32, torch.uint8),
    "bytes": (1028, 36, torch.uint8),
}


def formats(world: peerwarp.World) -> None:
    """Rows that are bytes, and their scales, come as they went, by packets and with flags; bf16 comes back."""
    found = []
    for dtype, (row, width, kind) in FORMATS.items():
        for most in (TOKENS, 300):
            sizes = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "max_tokens": most}
            if dtype == "bytes":
                sizes |= {"row_bytes": row, "scale_bytes": width}
            op = peerwarp.MoeAllToAll(world, **sizes, dtype=dtype)
            for seed, n in enumerate((TOKENS, TOKENS - 7 * dist.get_rank())):
                _, ids, weights = tokens(100 + seed, n)
                x = (drawn(110 + seed, n, row) * 100).to(torch.int32).to(torch.uint8)
                scales = (drawn(120 + seed, n, width) * 100).to(torch.int32).to(kind).contiguous() if width else None
                d = op.dispatch(x, ids, weights, scales=scales)
                for source, sent in enumerate(of_all_ranks(x)):
                    part = slice(source * most, source * most + len(sent))
                    came = (d.local_ids[part] >= 0).any(1)
                    assert torch.equal(d.rows.view(torch.uint8)[part][came], sent[came]), (dtype, most)
                for source, sent in enumerate(of_all_ranks(scales) if scales is not None else []):
                    part = slice(source * most, source * most + len(sent))
                    came = (d.local_ids[part] >= 0).any(1)
                    assert torch.equal(d.scales[part][came], sent[came]), (dtype, most)
                # Experts that yield ones: weights of a token's own experts, summed.
                ones = torch.ones((len(d.rows), HIDDEN), dtype=torch.bfloat16, device="cuda")
                y = (ones.float() * d.weights.sum(1, keepdim=True)).to(torch.bfloat16)
                wanted = torch.where(ids >= 0, weights, 0).sum(1, keepdim=True).expand(n, HIDDEN)
                close(op.combine(d, y), wanted)
            found.append(f"{dtype} of {most}")
            del op, d
    FOUND["formats"] = found


def quantised(world: peerwarp.World) -> None:
    """Rows that dispatch quantises, to the bit as PyTorch does."""
    found = []
    for dtype, block in (("fp8", 128), ("mxfp8", 32)):
        for most in (TOKENS, 300):
            sizes = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "max_tokens": most}
            op = peerwarp.MoeAllToAll(world, **sizes, dtype=dtype, quantise=True)
            x, ids, weights = tokens(160, TOKENS)
            x = x * torch.exp2(drawn(165, TOKENS, HIDDEN // block).mul(6).round()).repeat_interleave(block, 1).to(torch.bfloat16)
            x[0, :block] = 0
            d = op.dispatch(x, ids, weights)
            blocks = x.float().view(TOKENS, -1, block)
            largest = blocks.abs().amax(2)
            if dtype == "fp8":
                # By a number, PyTorch multiplies by its reciprocal on GPUs.
                scales = torch.where(largest == 0, 1.0, largest / torch.full_like(largest, 448.0))
                by = scales
            else:
                power = torch.where(largest == 0, 127, torch.frexp(largest).exponent - 1 - 8 + 127).clamp(0, 254)
                scales, by = power.to(torch.uint8), torch.exp2(power.float() - 127)
            rows = (blocks / by[..., None]).clamp(-448, 448).view(TOKENS, -1).to(torch.float8_e4m3fn).view(torch.uint8)
            for source, (row, scale) in enumerate(zip(of_all_ranks(rows), of_all_ranks(scales), strict=True)):
                part = slice(source * most, source * most + TOKENS)
                came = (d.local_ids[part] >= 0).any(1)
                assert torch.equal(d.rows.view(torch.uint8)[part][came], row[came]), (dtype, most)
                assert torch.equal(d.scales[part][came], scale[came]), (dtype, most)
            op.combine(d, torch.zeros((len(d.rows), HIDDEN), dtype=torch.bfloat16, device="cuda"))
            found.append(f"{dtype} of {most}")
            del op, d
    FOUND["quantised"] = found


def by_expert(d: peerwarp.DispatchedTensors) -> torch.Tensor:
    """What the experts make of rows that stand expert by expert; what stands in gaps is not a number."""
    y = torch.full(d.rows.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
    for e, (start, count) in enumerate(zip(d.expert_start.tolist(), d.expert_rows.tolist(), strict=False)):
        y[start : start + count] = expert(d.rows[start : start + count], d.first_expert + e).to(torch.bfloat16)
    return y


def weighted(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What comes back of experts that are not weighted."""
    total = torch.zeros(x.shape, device="cuda")
    for k in range(ids.shape[1]):
        total += torch.where(ids[:, k : k + 1] >= 0, expert(x, ids[:, k : k + 1]) * weights[:, k : k + 1], 0)
    return total


def layouts(world: peerwarp.World) -> None:
    """Experts' rows at multiples of a number, and at a fixed stride with what has no place counted."""
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK, "max_tokens": TOKENS}
    for align in (8, 16, 128):
        op = peerwarp.MoeAllToAll(world, **sizes, layout="expert_major", expert_align=align)
        x, ids, weights = tokens(130 + align, TOKENS)
        d = op.dispatch(x, ids, weights)
        assert not (d.expert_start % align).any()
        close(op.combine(d, by_expert(d)), weighted(x, ids, weights))
    op = peerwarp.MoeAllToAll(world, **sizes, layout="expert_strided")
    stride = TOKENS * dist.get_world_size()
    x, ids, weights = tokens(140, TOKENS)
    d = op.dispatch(x, ids, weights)
    assert int(d.overflow) == 0
    assert d.expert_start.tolist() == [stride * e for e in range(len(d.expert_start))]
    close(op.combine(d, by_expert(d)), weighted(x, ids, weights))
    # Every rank names the first expert over and over: only `stride` rows of all have a place.
    d = op.dispatch(x, torch.zeros_like(ids), weights)
    assert int(d.overflow) == (0 if dist.get_rank() else stride * (TOPK - 1))
    op.combine(d, by_expert(d))
    # Fewer places than rows: the next dispatch, of fewer tokens, is right again.
    op = peerwarp.MoeAllToAll(world, **sizes, layout="expert_major", max_rows=stride)
    d = op.dispatch(x, torch.zeros_like(ids), weights)
    assert d.rows.shape[0] == stride
    assert (int(d.overflow), int(d.needed)) == ((0, 0) if dist.get_rank() else (stride * (TOPK - 1), stride * TOPK))
    op.combine(d, by_expert(d))
    x, ids, weights = tokens(150, TOKENS // TOPK)
    d = op.dispatch(x, ids, weights)
    assert int(d.overflow) == 0
    close(op.combine(d, by_expert(d)), weighted(x, ids, weights))
    FOUND["layouts"] = ["expert_align 8, 16, 128", "expert_strided", "max_rows"]


def halves(world: peerwarp.World) -> None:
    """Halves of dispatch and combine, with other work in between, launched one by one and in a graph."""
    op = peerwarp.MoeAllToAll(world, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS, split=True)
    x, ids, weights = tokens(150, TOKENS)
    out, square = torch.empty_like(x), drawn(151, 256, 256)

    def layer() -> None:
        sending = op.dispatch_send(x, ids, weights)
        square.copy_(square @ square * 0 + 1)
        d = op.dispatch_receive(sending)
        returning = op.combine_send(d, rank_major(d))
        square.copy_(square @ square * 0 + 2)
        op.combine_receive(returning, out=out)

    layer()
    close(out, reference(x, ids, weights))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer()
    for seed in (152, 153):
        for into, one in zip((x, ids, weights), tokens(seed, TOKENS), strict=True):
            into.copy_(one)
        graph.replay()
        torch.cuda.synchronize()
        close(out, reference(x, ids, weights))
    FOUND["halves"] = "one by one, and in a graph"
