"""What is looked at before a launch on a GPU, and what the native part is told: with stand-ins for PyTorch and for the GPU."""

from __future__ import annotations

import copy
import math
import sys
import types
from typing import Any

import pytest

import peerwarp
from peerwarp import _core, _device


class Tensor:
    """As much of a tensor as is looked at."""

    next_address = 0x10000

    def __init__(self, *shape: int, dtype: str = "torch.bfloat16", device: str = "cuda:1", at: int | None = None) -> None:
        self.shape, self.dtype, self.device, self.contiguous = shape, dtype, device, True
        self.address = Tensor.next_address if at is None else at
        Tensor.next_address += 0x10000
        self.values: list[int] = []

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return {"torch.bfloat16": 2, "torch.float32": 4, "torch.int32": 4}[self.dtype]

    def is_contiguous(self) -> bool:
        return self.contiguous

    def stride(self) -> tuple[int, ...]:
        return (1, 3)

    def data_ptr(self) -> int:
        return self.address

    def view(self, dtype: str) -> Tensor:
        self.dtype = dtype
        return self

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(len(range(*part.indices(self.shape[0]))), *self.shape[1:], dtype=self.dtype, at=self.address)

    def computed(self, values: list[int]) -> Tensor:
        new = Tensor(*self.shape, dtype=self.dtype)
        new.values = values
        return new

    def __sub__(self, number: int) -> Tensor:
        return self.computed([value - number for value in self.values])

    def __lt__(self, number: int) -> Tensor:
        return self.computed([value < number for value in self.values])

    def masked_fill(self, mask: Tensor, number: int) -> Tensor:
        pairs = zip(self.values, mask.values, strict=True)
        return self.computed([number if masked else value for value, masked in pairs])


calls: list[tuple[Any, ...]] = []


class Collective:
    def __init__(self, *arguments: object) -> None:
        calls.append(("made", *arguments[1:]))

    def launch(self, *arguments: int) -> None:
        calls.append(("launch", *arguments))


class Moe:
    """Two ranks, 4 experts, 2 of a token, 8 elements, 3 tokens; this one is rank 1."""

    def __init__(self, *arguments: object) -> None:
        calls.append(("made", *arguments[1:]))
        self.number = 0

    def scales(self) -> int:
        return 0

    def first_experts(self) -> list[int]:
        return [0, 2, 4]

    def buffers(self) -> list[tuple[str, int, int]]:
        sizes = {"rows": 6 * 8 * 2, "row_scale": 0, "expert_start": 12, "expert_rows": 8, "n_from": 8, "weight_from": 48}
        sizes |= {"gather": 48, "entry_expert": 48}
        return [(name, 0x1000 * at, size) for at, (name, size) in enumerate(sizes.items(), 1)]

    def dispatch(self, *arguments: int) -> int:
        calls.append(("dispatch", *arguments))
        self.number += 1
        return self.number

    def combine(self, *arguments: int) -> None:
        calls.append(("combine", *arguments))


class Core:
    """In place of a world's native part."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> peerwarp.World:
    calls.clear()
    new = lambda shape, dtype, device: Tensor(*shape, dtype=dtype, device=device)  # noqa: E731
    capturing: list[bool] = [False]

    def as_tensor(memory: _device.Memory, device: str) -> Tensor:
        told = memory.__cuda_array_interface__
        dtype = {"<i2": "torch.int16", "<i4": "torch.int32", "<f4": "torch.float32"}[told["typestr"]]
        return Tensor(*told["shape"], dtype=dtype, at=told["data"][0])

    torch = types.ModuleType("torch")
    torch.__dict__.update(
        Tensor=Tensor,
        device=lambda kind, number: f"{kind}:{number}",
        _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda gpu: 70 + gpu),
        cuda=types.SimpleNamespace(is_current_stream_capturing=lambda: capturing[0]),
        as_tensor=as_tensor,
        empty=new,
        from_dlpack=lambda value: value.tensor,
        **{name: f"torch.{name}" for name in ("bfloat16", "float16", "float32", "int32", "float8_e4m3fn")},
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(_core, "DeviceCollective", Collective)
    monkeypatch.setattr(_core, "DeviceMoe", Moe)
    made = peerwarp.World(Core(), 2, 1)  # type: ignore[arg-type]
    made._gpu = 1
    made.capturing = capturing  # type: ignore[attr-defined]
    return made


def refused(field: str, call: Any) -> str:
    with pytest.raises(peerwarp.InvalidArgument) as error:
        call()
    assert error.value.field == field
    return str(error.value)


def test_a_collective_is_made_once_for_its_length_and_launched_on_the_current_stream(world: peerwarp.World) -> None:
    all_of = peerwarp.Collectives(world)
    x, out = Tensor(4, 3), Tensor(8, 3)
    assert all_of.all_gather(x, out=out) is out
    result = all_of.reduce_scatter(x, "max")
    assert (result.shape, result.dtype, result.device) == ((2, 3), "torch.bfloat16", "cuda:1")
    all_of.all_gather(x, out=out)
    launched = ("launch", x.address, out.address, 71)
    assert calls == [
        ("made", "all_gather", ("sum", 0), ("bf16", 12)),
        launched,
        ("made", "reduce_scatter", ("max", 0), ("bf16", 12)),
        ("launch", x.address, result.address, 71),
        launched,
    ]
    assert all_of.broadcast(x, 1).shape == (4, 3)
    assert calls[-2] == ("made", "broadcast", ("sum", 1), ("bf16", 12))
    assert all_of.all_reduce(types.SimpleNamespace(__dlpack__=None, tensor=x)).shape == (4, 3)
    assert all_of.all_to_all(x).shape == (4, 3)


def test_what_a_collective_cannot_take_is_refused_before_a_launch(world: peerwarp.World) -> None:
    all_of = peerwarp.Collectives(world)
    x = Tensor(4, 3)
    assert "a tensor on cuda:1" in refused("x", lambda: all_of.all_reduce([1.0]))
    refused("x.device", lambda: all_of.all_reduce(Tensor(4, device="cpu")))
    refused("x.dtype", lambda: all_of.all_reduce(Tensor(4, dtype="torch.int32")))
    refused("x.shape", lambda: all_of.all_reduce(Tensor(0)))
    refused("x.shape", lambda: all_of.all_gather(Tensor()))
    refused("x.shape", lambda: all_of.reduce_scatter(Tensor(3, 2)))
    refused("x.shape", lambda: all_of.all_to_all(Tensor(3, 2)))
    refused("op", lambda: all_of.all_reduce(x, "mean"))
    refused("root", lambda: all_of.broadcast(x, 2))
    refused("out.shape", lambda: all_of.all_reduce(x, out=Tensor(3, 4)))
    refused("out.dtype", lambda: all_of.all_reduce(x, out=Tensor(4, 3, dtype="torch.float32")))
    refused("out", lambda: all_of.all_reduce(x, out=Tensor(4, 3, at=x.address + 23)))
    all_of.all_reduce(x, out=Tensor(4, 3, at=x.address + 24))
    strided = Tensor(4, 3)
    strided.contiguous = False
    refused("x.strides", lambda: all_of.all_reduce(strided))
    world.capturing[0] = True  # type: ignore[attr-defined]
    all_of.all_reduce(x)
    with pytest.raises(peerwarp.PeerwarpError, match="cannot be captured"):
        all_of.all_reduce(Tensor(5))
    assert [call[0] for call in calls] == ["made", "launch", "launch"]


def moe(world: peerwarp.World) -> peerwarp.MoeAllToAll:
    return peerwarp.MoeAllToAll(world, hidden=8, experts=4, topk=2, max_tokens=3)


def sent(n: int) -> list[Tensor]:
    return [Tensor(n, 8), Tensor(n, 2, dtype="torch.int32"), Tensor(n, 2, dtype="torch.float32")]


def test_dispatch_passes_tensors_as_they_are_however_few_tokens_there_are(world: peerwarp.World) -> None:
    op = moe(world)
    assert calls == [("made", (8, 4, 2, 3), "bf16", "rank_major")]
    x, ids, weights = sent(3)
    d = op.dispatch(x, ids, weights)
    assert calls[-1] == ("dispatch", x.address, 0, 3, ids.address, weights.address, 71)
    assert (d.rows.shape, d.rows.dtype, d.first_expert) == ((6, 8), "torch.bfloat16", 2)
    d._op.buffers["ids"].values = [2, -1, 3, 2]
    assert d.local_ids.values == [0, -1, 1, 0]
    assert [d.local_ids.shape, d.gather.shape, d.expert_start.shape, d.expert_rows.shape] == [(6, 2), (12,), (3,), (2,)]
    with pytest.raises(AttributeError, match="rank_major and type bf16 has no scales"):
        _ = d.scales
    assert copy.copy(d).rows is d.rows
    y = Tensor(6, 8)
    out = op.combine(d, y)
    assert (out.shape, calls[-1]) == ((3, 8), ("combine", 1, y.address, out.address, 71))
    # A graph may have it as well: nothing is made or copied.
    world.capturing[0] = True  # type: ignore[attr-defined]
    x, ids, weights = sent(2)
    op.dispatch(x, ids, weights)
    assert calls[-1] == ("dispatch", x.address, 0, 2, ids.address, weights.address, 71)
    nothing = op.combine(op.dispatch(*sent(0)), y, out=Tensor(0, 8, at=0))
    assert (nothing.shape, calls[-1][2:4]) == ((0, 8), (y.address, y.address))


def test_what_dispatch_and_combine_cannot_take_is_refused(world: peerwarp.World) -> None:
    op, other = moe(world), moe(world)
    x, ids, weights = sent(3)
    refused("x.shape", lambda: op.dispatch(Tensor(4, 8), ids, weights))
    refused("x.shape", lambda: op.dispatch(Tensor(3, 9), ids, weights))
    refused("x.dtype", lambda: op.dispatch(Tensor(3, 8, dtype="torch.float32"), ids, weights))
    refused("ids.shape", lambda: op.dispatch(x, sent(2)[1], weights))
    refused("weights.dtype", lambda: op.dispatch(x, ids, ids))
    refused("scales", lambda: op.dispatch(x, ids, weights, scales=weights))
    d = op.dispatch(x, ids, weights)
    refused("d", lambda: other.combine(d, Tensor(6, 8)))
    refused("y.shape", lambda: op.combine(d, Tensor(3, 8)))
    y = Tensor(6, 8)
    refused("out", lambda: op.combine(d, y, out=Tensor(3, 8, at=y.address)))
    world.capturing[0] = True  # type: ignore[attr-defined]
    with pytest.raises(peerwarp.PeerwarpError, match="cannot be captured"):
        moe(world)
