"""What is looked at before a launch on a GPU, and what the native part gets: with stand-ins for PyTorch and for the GPU."""

from __future__ import annotations

import copy
import math
import sys
import types
from typing import Any
from unittest import mock

import pytest

import peerwarp
from peerwarp import _core, _device, _layer


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

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return {"torch.bfloat16": 2, "torch.float32": 4, "torch.int32": 4, "torch.int64": 8}[self.dtype]

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

    def __setitem__(self, part: slice, value: Any) -> None:
        calls.append(("set", self.address, part, getattr(value, "address", value)))

    def copy_(self, other: Tensor) -> None:
        calls.append(("copy", self.address, self.shape, other.address))

    def new_empty(self, shape: tuple[int, ...], device: str) -> Tensor:
        return Tensor(*shape, dtype=self.dtype, device=device)

    def computed(self, values: list[int]) -> Tensor:
        new = Tensor(*self.shape, dtype=self.dtype)
        new.values = values
        return new

    def __sub__(self, number: int) -> Tensor:
        return self.computed([value - number for value in self.values])

    def __eq__(self, number: object) -> Any:
        return self.computed([value == number for value in self.values])

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, number: int) -> Tensor:
        return self.computed([value < number for value in self.values])

    def masked_fill(self, mask: Tensor, number: int) -> Tensor:
        pairs = zip(self.values, mask.values, strict=True)
        return self.computed([number if masked else value for value, masked in pairs])


calls: list[tuple[Any, ...]] = []


class Collectives:
    """Made and launched by addresses: it never looks at a tensor itself."""

    def __init__(self, *arguments: object) -> None:
        self.known: list[Any] = []
        self.capacities = arguments[-1]

    def has(self, *what: Any) -> bool:
        return what in self.known

    def make(self, *what: Any) -> None:
        self.known.append(what)
        calls.append(("made", *what))

    def launch(self, name: str, op_root: Any, dtype_elements: Any, places: tuple[int, int, int]) -> None:
        assert (name, op_root, dtype_elements) in self.known
        calls.append(("launch", *places))

    def run(self, *arguments: object) -> bool:
        return False

    def uneven(self, *arguments: Any) -> bool:
        of, row_most, rows, places, may = arguments
        what = [*of, row_most]
        if what not in self.known:
            if not may:
                return False
            self.known.append(what)
            calls.append(("made", *what))
        calls.append(("launch", rows, places))
        return True

    def free(self) -> None:
        self.known.clear()

    def memory_bytes(self) -> int:
        return 100 * len(self.known)


class Moe:
    """Two ranks, 4 experts, 2 of a token, 8 elements; this one is rank 1."""

    looks = False

    def __init__(self, world: object, sizes: object, capacities: list[int], *arguments: object) -> None:
        calls.append(("made", sizes, capacities, *arguments))
        self.number, self.capacities = 0, capacities

    def row_sizes(self) -> tuple[int, int, bool]:
        return 16, 0, True

    def set_wait_budget(self, *arguments: object) -> None:
        calls.append(("budget", *arguments))

    def set_tables(self, tables: object) -> None:
        calls.append(("tables", tables))

    def dispatch_receive(self, *arguments: object) -> None:
        calls.append(("receive", *arguments))

    def combine_send(self, *arguments: object) -> None:
        calls.append(("send back", *arguments))

    def combine_receive(self, *arguments: object) -> None:
        calls.append(("sum", *arguments))

    def first_experts(self) -> list[int]:
        return [0, 2, 4]

    def memory_bytes(self) -> list[int]:
        return [1000 * tokens for tokens in self.capacities]

    def kernels(self) -> list[tuple[str, str]]:
        return [(f"for_{tokens}", "default") for tokens in self.capacities]

    def buffers(self, step: int) -> list[tuple[str, int, int]]:
        places = 2 * self.capacities[step]
        sizes = {"rows": places * 8 * 2, "row_scale": 0, "expert_start": 12, "expert_rows": 8, "n_from": 8}
        sizes |= {"weight_from": places * 8, "gather": places * 8, "entry_expert": places * 8}
        return [(name, 0x1000 * at, size) for at, (name, size) in enumerate(sizes.items(), 1)]

    def dispatch(self, *arguments: object) -> int:
        calls.append(("dispatch", *arguments))
        self.number += 1
        return self.number

    def combine(self, *arguments: int) -> None:
        calls.append(("combine", *arguments))

    def send_tensors(self, step: int, x: Tensor, *others: object) -> tuple[int, int] | None:
        if not Moe.looks:
            return None
        calls.append(("send", step))
        self.number += 1
        return x.shape[0], self.number

    def bring_back_tensors(self, *arguments: object) -> bool:
        if Moe.looks:
            calls.append(("bring back", arguments[0], arguments[1], arguments[4]))
        return Moe.looks


class Kernel:
    """A kernel of rows that a number counts, a matrix and an output."""

    def name(self) -> str:
        return "scale_n8"

    def family(self) -> str:
        return "scale"

    def passed(self) -> list[tuple[str, str, int, int, str | None, bool]]:
        return [
            ("rows", "bf16", 8, 32, "n", False),
            ("w", "f32", 4, 16, None, False),
            ("n", "u32", 0, 0, None, False),
            ("out", "i32", 0, 5, None, True),
        ]


class Scale:
    """Launched by addresses: it never looks at a tensor itself."""

    def __init__(self, world: object, kernel: Kernel, exchange: object) -> None:
        calls.append(("made", kernel.name()))

    def run(self, passed: dict[str, object]) -> bool:
        return False

    def launch(self, tensors: list[tuple[int, int]], numbers: list[float], stream: int) -> None:
        calls.append(("launch", tensors, numbers, stream))

    def memory_bytes(self) -> int:
        return 77


#: What rows are unless arguments say otherwise.
ROWS = ("bf16", None, False, False, "combined", ("row", "floor"))
TYPES = "bfloat16", "float16", "float32", "int32", "int64", "float8_e4m3fn", "uint8", "int8"
# Neither split nor counting what is missing; no slots, one replica, no counts, ids of int32.
PLAIN = False, False, (0, 1, False, False)


class Core:
    """In place of a world's native part."""

    def symmetric(self, size: int) -> tuple[int, object]:
        calls.append(("symmetric", size))
        return 0x9000, self

    def fault_word(self, rank: int) -> tuple[int, object]:
        assert rank == 1
        return 0x7000, self


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> peerwarp.World:
    calls.clear()
    new = lambda shape, dtype, device: Tensor(*shape, dtype=dtype, device=device)  # noqa: E731
    capturing: list[bool] = [False]

    def as_tensor(memory: _device.Memory, device: str) -> Tensor:
        told = memory.__cuda_array_interface__
        dtype = {"|u1": "torch.uint8", "<i2": "torch.int16", "<i4": "torch.int32", "<f4": "torch.float32"}[told["typestr"]]
        return Tensor(*told["shape"], dtype=dtype, at=told["data"][0])

    torch = types.ModuleType("torch")
    torch.__dict__.update(
        Tensor=Tensor,
        device=lambda kind, number: f"{kind}:{number}",
        _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda gpu: 70 + gpu),
        cuda=types.SimpleNamespace(is_current_stream_capturing=lambda: capturing[0]),
        as_tensor=as_tensor,
        empty=new,
        full=lambda shape, number, dtype, device: new(shape, dtype, device).computed([number]),
        tensor=lambda values, dtype, device: new([len(values)], dtype, device).computed(values),
        from_dlpack=lambda value: value.tensor,
        **{name: f"torch.{name}" for name in TYPES},
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(_core, "DeviceCollectives", Collectives)
    monkeypatch.setattr(_core, "DeviceMoe", Moe)
    monkeypatch.setattr(_core, "DeviceOperation", Scale)
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
    for name, dtype, kernels in (("all_reduce", "int32", "i32"), ("all_gather", "uint8", "fp8")):
        getattr(all_of, name)(Tensor(4, dtype=f"torch.{dtype}"))
        assert calls[-2] == ("made", name, ("sum", 0), (kernels, 4))


def test_ranks_have_lengths_of_their_own(world: peerwarp.World) -> None:
    all_of = peerwarp.Collectives(world, capacities=[64, 100])
    assert all_of._device._core.capacities == [64, 100]
    x = Tensor(9, 3)
    out = all_of.all_gather(x, sizes=[4, 9])
    made, launched = calls
    assert (out.shape, made) == ((13, 3), ("made", "all_gather", "sum", "bf16", (3, 16)))
    assert (launched[1], launched[2][:2], launched[2][3]) == ((9, 13), (x.address, out.address), 71)
    n = launched[2][2]
    # The same lengths are on the GPU once, and one operation takes others up to its capacity.
    assert all_of.all_gather(x, sizes=[4, 9], out=out) is out
    all_of.all_gather(x, sizes=[16, 9])
    assert calls[2] == launched
    assert (calls[3][1], calls[3][2][2] != n, len(calls)) == ((9, 25), True, 4)
    part = all_of.reduce_scatter(Tensor(5, 3), "max", sizes=[5, 0], max_size=40)
    assert part.shape == (0, 3)
    assert calls[4:][0] == ("made", "reduce_scatter", "max", "bf16", (3, 64))
    assert calls[5][1] == (0, 5)

    # Lengths on the GPU: tensors say how much room there is, up to the capacity.
    sizes, room = Tensor(2, dtype="torch.int32"), Tensor(50, 3)
    all_of.all_gather(x, sizes=sizes, max_size=12, out=room)
    assert calls[-1] == ("launch", (9, 32), (x.address, room.address, sizes.address, 71))
    refused("max_size", lambda: all_of.all_gather(x, sizes=sizes, out=room))
    refused("out", lambda: all_of.all_gather(x, sizes=sizes, max_size=12))
    refused("out.shape", lambda: all_of.all_gather(x, sizes=sizes, max_size=12, out=Tensor(50, 4)))
    refused("sizes.shape", lambda: all_of.all_gather(x, sizes=Tensor(3, dtype="torch.int32"), max_size=12, out=room))
    refused("sizes.dtype", lambda: all_of.all_gather(x, sizes=Tensor(2, dtype="torch.int64"), max_size=12, out=room))
    refused("out", lambda: all_of.all_gather(x, sizes=sizes, max_size=12, out=Tensor(50, 3, at=x.address)))
    refused("x.shape", lambda: all_of.all_gather(x, sizes=[4, 8]))
    refused("x.shape", lambda: all_of.all_gather(Tensor(9, 65537), sizes=[4, 9]))
    refused("sizes", lambda: all_of.all_gather(x, sizes=[9]))

    # What a graph captures is made before.
    launches = len(calls)
    world.capturing[0] = True  # type: ignore[attr-defined]
    all_of.all_gather(x, sizes=[4, 9], out=out)
    all_of.all_gather(x, sizes=sizes, max_size=12, out=room)
    for call in (
        lambda: all_of.all_gather(x, sizes=[5, 9]),
        lambda: all_of.all_gather(x, sizes=sizes, max_size=20, out=room),
    ):
        with pytest.raises(peerwarp.PeerwarpError, match="cannot be captured"):
            call()
    assert len(calls) == launches + 2
    assert all_of.memory_bytes == 200
    all_of.free()
    assert all_of.memory_bytes == 0


def test_an_operation_passes_tensors_and_numbers_by_name(world: peerwarp.World) -> None:
    scale = peerwarp.Operation(world, Kernel())  # type: ignore[arg-type]
    given: dict[str, Any] = {
        "n": 3,
        "out": Tensor(5, dtype="torch.int32"),
        "rows": Tensor(3, 8),
        "w": Tensor(16, dtype="torch.float32"),
    }
    scale(**given)
    addresses = [(given[name].address, size) for name, size in (("rows", 48), ("w", 64), ("out", 20))]
    assert calls == [("made", "scale_n8"), ("launch", addresses, [3], 71)]
    assert (scale.memory_bytes, repr(scale)) == (77, "<Operation scale_n8>")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("rows.shape", {"rows": Tensor(3, 7)}),
        ("rows.shape", {"rows": Tensor(6, 4)}),
        ("w.shape", {"w": Tensor(2, 8, dtype="torch.float32")}),
        ("w.shape", {"w": Tensor(15, dtype="torch.float32")}),
        ("w.dtype", {"w": Tensor(16)}),
        ("out.device", {"out": Tensor(5, dtype="torch.int32", device="cuda:0")}),
        ("n", {"n": "three"}),
        ("n", {"n": True}),
        ("parameter", {"m": 3}),
    ]
    for field, change in wrong:
        refused(field, lambda change=change: scale(**(given | change)))
    refused("n, out", lambda: scale(rows=given["rows"], w=given["w"]))
    assert len(calls) == 2, "nothing was launched"
    world.capturing[0] = True  # type: ignore[attr-defined]
    scale(**given)
    with pytest.raises(peerwarp.PeerwarpError, match="cannot be captured"):
        peerwarp.Operation(world, Kernel())  # type: ignore[arg-type]


def test_memory_that_peers_reach_is_a_tensor(world: peerwarp.World) -> None:
    part = world.empty((2, 3), "bf16")
    assert (part.shape, part.address, calls) == ((2, 3), 0x9000, [("symmetric", 12)])
    assert "bf16" in refused("dtype", lambda: world.empty(3, "bfloat16"))
    refused("shape[1]", lambda: world.empty((2, 0), "f32"))
    simulated = peerwarp.World.simulated(2).empty(4, "f32")
    assert [(one.shape, one.dtype.name, one.any()) for one in simulated] == [((4,), "float32", False)] * 2


def test_what_a_collective_cannot_take_is_refused_before_a_launch(world: peerwarp.World) -> None:
    all_of = peerwarp.Collectives(world)
    x = Tensor(4, 3)
    assert "a tensor on cuda:1" in refused("x", lambda: all_of.all_reduce([1.0]))
    refused("x.device", lambda: all_of.all_reduce(Tensor(4, device="cpu")))
    for reduce in (all_of.all_reduce, all_of.reduce_scatter):
        assert "torch.int32" in refused("x.dtype", lambda reduce=reduce: reduce(Tensor(4, dtype="torch.uint8")))
    refused("x.dtype", lambda: all_of.all_gather(Tensor(4, dtype="torch.int8")))
    # Nothing is made and launched for no element.
    assert all_of.all_reduce(Tensor(0)).shape == (0,)
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


def moe(world: peerwarp.World, **more: Any) -> peerwarp.MoeAllToAll:
    return peerwarp.MoeAllToAll(world, hidden=8, experts=4, topk=2, max_tokens=3, **more)


def sent(n: int) -> list[Tensor]:
    return [Tensor(n, 8), Tensor(n, 2, dtype="torch.int32"), Tensor(n, 2, dtype="torch.float32")]


def test_dispatch_passes_tensors_as_they_are_however_few_tokens_there_are(world: peerwarp.World) -> None:
    op = moe(world)
    assert calls == [("made", (8, 4, 2), [3], (ROWS, ("rank_major", 1, 0)), (-1, None, PLAIN), None)]
    x, ids, weights = sent(3)
    d = op.dispatch(x, ids, weights)
    assert calls[-1] == ("dispatch", 0, (x.address, 0, ids.address, weights.address), 3, 71, False)
    assert (d.rows.shape, d.rows.dtype, d.first_expert) == ((6, 8), "torch.bfloat16", 2)
    d._step.buffers["ids"].values = [2, -1, 3, 2]
    assert d.local_ids.values == [0, -1, 1, 0]
    assert [d.local_ids.shape, d.gather.shape, d.expert_start.shape, d.expert_rows.shape] == [(6, 2), (12,), (3,), (2,)]
    with pytest.raises(AttributeError, match="rank_major and type bf16 has no scales"):
        _ = d.scales
    assert copy.copy(d).rows is d.rows
    y = Tensor(6, 8)
    out = op.combine(d, y)
    assert (out.shape, calls[-1]) == ((3, 8), ("combine", 0, 1, y.address, out.address, 71))
    # A graph may have it as well: nothing is made or copied.
    world.capturing[0] = True  # type: ignore[attr-defined]
    x, ids, weights = sent(2)
    op.dispatch(x, ids, weights)
    assert calls[-1] == ("dispatch", 0, (x.address, 0, ids.address, weights.address), 2, 71, False)
    nothing = op.combine(op.dispatch(*sent(0)), y, out=Tensor(0, 8, at=0))
    assert (nothing.shape, calls[-1][3:5]) == ((0, 8), (y.address, y.address))


def test_rows_of_fp8_are_of_types_whose_byte_of_all_ones_is_a_nan(world: peerwarp.World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moe, "row_sizes", lambda _: (8, 4, True))
    op = moe(world, dtype="fp8")
    _, ids, weights = sent(3)
    scales = Tensor(3, 1, dtype="torch.float32")

    def dispatched(dtype: str) -> Any:
        return op.dispatch(Tensor(3, 8, dtype=dtype), ids, weights, scales=scales)

    for dtype in ("torch.float8_e4m3fn", "torch.uint8"):
        assert dispatched(dtype)._n == 3
    for dtype in ("torch.int8", "torch.float8_e8m0fnu"):
        assert dtype in refused("x.dtype", lambda dtype=dtype: dispatched(dtype))


def test_halves_of_a_call_are_launched_apart(world: peerwarp.World) -> None:
    op = moe(world, split=True)
    assert calls[-1][4] == (-1, None, (True, *PLAIN[1:]))
    x, ids, weights = sent(2)
    sending = op.dispatch_send(x, ids, weights)
    assert calls[-1] == ("dispatch", 0, (x.address, 0, ids.address, weights.address), 2, 71, True)
    d = op.dispatch_receive(sending)
    assert (calls[-1], d.rows.shape) == (("receive", 0, 1, 71), (6, 8))
    y = Tensor(6, 8)
    returning = op.combine_send(d, y)
    assert calls[-1] == ("send back", 0, 1, y.address, 71)
    refused("out", lambda: op.combine_receive(returning, out=Tensor(2, 8, at=y.address)))
    refused("out.shape", lambda: op.combine_receive(returning, out=Tensor(3, 8)))
    refused("y.shape", lambda: op.combine_send(d, Tensor(5, 8)))
    out = op.combine_receive(returning)
    assert (out.shape, calls[-1]) == ((2, 8), ("sum", 0, 1, out.address, 71))
    whole = moe(world)
    refused("split", lambda: whole.dispatch_send(x, ids, weights))
    refused("sending", lambda: op.dispatch_receive(d))
    op.set_wait_budget(2)
    assert calls[-1] == ("budget", 2.0)
    refused("seconds", lambda: op.set_wait_budget(0))


def test_the_world_has_a_word_that_says_whether_it_was_aborted(world: peerwarp.World) -> None:
    word = world.fault
    assert (word.shape, word.dtype, word.address) == ((1,), "torch.int32", 0x7000)


def test_a_call_takes_the_smallest_capacity_that_has_room(world: peerwarp.World) -> None:
    op = peerwarp.MoeAllToAll(world, hidden=8, experts=4, topk=2, max_tokens=9, capacities=[2, 4], empty_id=4, sms=16)
    assert calls == [("made", (8, 4, 2), [2, 4, 9], (ROWS, ("rank_major", 1, 0)), (4, 16, PLAIN), None)]
    assert (op.capacities, op.memory_bytes) == ((2, 4, 9), (2000, 4000, 9000))
    assert op.kernels[1] == ("for_4", "default")
    for most, step, places in ((0, 0, 4), (2, 0, 4), (3, 1, 8), (5, 2, 18), (None, 2, 18)):
        d = op.dispatch(*sent(2), max_tokens=most)
        assert (calls[-1][1], d.rows.shape, d.capacity) == (step, (places, 8), op.capacities[step])
        op.combine(d, Tensor(places, 8))
        assert calls[-1][:2] == ("combine", step)
    assert "the largest capacity" in refused("max_tokens", lambda: op.dispatch(*sent(2), max_tokens=10))
    refused("x.shape", lambda: op.dispatch(*sent(3), max_tokens=2))
    # Entries of no expert have the operation's `empty_id`.
    d._step.buffers["ids"].values = [2, 4, 3]
    assert d.local_ids.values == [0, -1, 1]
    refused("capacities[1]", lambda: moe(world, capacities=[2, 2]))
    refused("capacities[0]", lambda: moe(world, capacities=[4]))
    refused("empty_id", lambda: moe(world, empty_id=3))
    refused("sms", lambda: moe(world, sms=0))


def test_what_the_native_part_takes_is_looked_at_nowhere_else(world: peerwarp.World, monkeypatch: pytest.MonkeyPatch) -> None:
    op = moe(world)
    monkeypatch.setattr(Moe, "looks", True)
    monkeypatch.setattr(_device.Device, "checked", None)
    y, out = Tensor(6, 8), Tensor(2, 8)
    assert op.combine(op.dispatch(*sent(2)), y, out=out) is out
    assert calls[1:] == [("send", 0), ("bring back", 0, (2, 1), 6)]


def test_tables_of_experts_are_read_where_they_are(world: peerwarp.World) -> None:
    place, counts, load = (Tensor(*shape, dtype="torch.int32") for shape in ((4, 2), (4,), (4,)))
    op = moe(world, expert_slots=3, placement=place, replica_counts=counts, expert_load=load, ids_dtype="int64")
    assert calls[0][4][2][2] == (3, 2, True, True)
    assert calls[1:] == [("tables", (place.address, counts.address, load.address))]
    x, _, weights = sent(3)
    ids = Tensor(3, 2, dtype="torch.int64")
    op.dispatch(x, ids, weights)
    assert calls[-1][2] == (x.address, 0, ids.address, weights.address)
    refused("ids.dtype", lambda: op.dispatch(x, sent(3)[1], weights))
    refused("expert_load.dtype", lambda: moe(world, expert_load=Tensor(4, dtype="torch.int64")))
    refused("placement.device", lambda: moe(world, expert_slots=3, placement=Tensor(4, 1, dtype="torch.int32", device="cpu")))


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


class Product(Kernel):
    """A kernel of a layer with 8 columns, 16 between its products and 3 experts of a rank at most."""

    PASSED = types.MappingProxyType(
        {
            "moe_layer": "x/8 n:1 rows_there ids/2 weights/2 w1:768 w2:384 out/8",
            "first": "x:320 counts:3 w:768 out:640",
            "second": "x:640 counts:3 w:384 out:320",
        }
    )
    DTYPES = types.MappingProxyType({"n": "u32", "counts": "u32", "rows_there": "u32", "ids": "i32", "weights": "f32"})

    def __init__(self, family: str, key: list[tuple[str, str]], ranks: int, on: object) -> None:
        self.key = dict(key)
        self.kind = "moe_layer" if family == "moe_layer" else "first" if self.key["n"] == "32" else "second"
        calls.append(("kernel", self.kind, ranks))

    def name(self) -> str:
        return self.kind

    def passed(self) -> list[tuple[str, str, int, int, str | None, bool]]:
        found: list[tuple[str, str, int, int, str | None, bool]] = []
        for one in self.PASSED[self.kind].split():
            name, row, length = one.partition(":")[0].partition("/")[0], one.partition("/")[2], one.partition(":")[2]
            counted = "rows_there" if row else None
            found.append((name, self.DTYPES.get(name, "bf16"), int(row or 0), int(length or row or 0), counted, name == "out"))
        return found


@pytest.fixture
def layer(world: peerwarp.World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a layer of two ranks with 5 experts: this one, rank 1, has two of them."""
    monkeypatch.setattr(_core, "shipped_kernel", Product)
    monkeypatch.setattr(
        Moe, "buffers", lambda moe, step: [("rows", 0x1000, 40 * 16), ("expert_rows", 0x2000, 12), ("expert_start", 0x3000, 16)]
    )
    weights = peerwarp.MoeWeights(Tensor(2, 32, 8), Tensor(2, 8, 16))
    sizes = {"hidden": 8, "inter": 16, "experts": 5, "topk": 2, "max_tokens": 4}
    return lambda **others: peerwarp.MoeLayer(world, **{"weights": weights} | sizes | others)


def given(n: int) -> tuple[Tensor, Tensor, Tensor]:
    return Tensor(n, 8), Tensor(n, 2, dtype="torch.int32"), Tensor(n, 2, dtype="torch.float32")


def test_a_layer_in_one_launch_passes_rows_and_weights(layer: Any) -> None:
    fused = layer(way="fused")
    made, filled = calls[-2:], [one for one in calls if one[0] == "set"]
    assert [one[0] for one in made] == ["kernel", "made"] and made[0] == ("kernel", "moe_layer", 2)
    # An expert that only rank 0 has is zeros.
    assert [(part, value) for _, _, part, value in filled[1::2]] == [(slice(2, None), 0)] * 2
    assert (fused.way, fused.kernels, fused.memory_bytes) == ("fused", ("moe_layer",), 77)
    x, ids, weights = given(3)
    out = fused(x, ids, weights)
    (what, tensors, numbers, stream), w1_w2 = calls[-1], [filled[0][1], filled[2][1]]
    assert (what, numbers, stream, out.shape) == ("launch", [3], 71, (3, 8))
    at = [address for address, _ in tensors]
    assert at == [x.address, at[1], ids.address, weights.address, *w1_w2, out.address]
    assert tensors[1][1] == 4
    assert fused(x, ids, weights, out=Tensor(3, 8, at=0x7700)).address == calls[-1][1][-1][0] == 0x7700
    refused("x.shape", lambda: fused(*given(5)))
    refused("x.device", lambda: fused(Tensor(3, 8, device="cuda:0"), ids, weights))
    refused("ids.shape", lambda: fused(x, given(2)[1], weights))
    refused("weights.dtype", lambda: fused(x, ids, Tensor(3, 2)))
    refused("out.shape", lambda: fused(x, ids, weights, out=Tensor(4, 8)))
    refused("out", lambda: fused(x, ids, weights, out=Tensor(3, 8, at=x.address)))
    refused("weights.w2.device", lambda: layer(weights=peerwarp.MoeWeights(Tensor(2, 32, 8), Tensor(2, 8, 16, device="cpu"))))
    said = refused("weights.w1.shape", lambda: layer(weights=peerwarp.MoeWeights(Tensor(3, 32, 8), Tensor(3, 8, 16))))
    assert "experts 3 to 4" in said


def test_a_layer_apart_multiplies_what_dispatch_brought(layer: Any) -> None:
    apart = layer(way="apart")
    assert (apart.way, apart.kernels) == ("apart", ("for_4", "first", "second"))
    # Dispatch and combine, two products, rows of bf16 between these, and counts.
    assert apart.memory_bytes == 4000 + 2 * 77 + 40 * 16 * 2 + 3 * 4
    calls.clear()
    x, ids, weights = given(3)
    out = apart(x, ids, weights)
    sent, copied, first, second, combined = calls
    assert (sent[0], sent[2], combined[0]) == ("dispatch", (x.address, 0, ids.address, weights.address), "combine")
    assert copied[0] == "copy" and copied[2:] == ((2,), 0x2000)
    assert [address for address, _ in first[1]][:2] == [0x1000, copied[1]]
    # The second product reads what the first one writes, and writes where the rows were.
    assert first[1][3] == second[1][0] and second[1][3][0] == 0x1000
    assert combined[3:5] == (0x1000, out.address)


@pytest.mark.parametrize(("slower", "wanted"), [(1.0, "fused"), (9.0, "apart")])
def test_all_ranks_take_the_way_whose_slowest_rank_is_faster(
    layer: Any, monkeypatch: pytest.MonkeyPatch, slower: float, wanted: str
) -> None:
    own = {"fused": 2.0, "apart": 3.0}
    monkeypatch.setattr(peerwarp.MoeLayer, "_time", lambda layer, device, way: own[way.way])
    others = mock.Mock()
    # On the other rank one launch takes longer.
    others.all_reduce = lambda times, op: types.SimpleNamespace(tolist=lambda: [max(times.values[0], slower), times.values[1]])
    monkeypatch.setattr(_layer, "Collectives", lambda world: others)
    assert layer().way == wanted
    others.free.assert_called_once_with()

    def none(*_: object, **__: object) -> None:
        raise peerwarp.InvalidArgument("rows", 2**21, "fewer")

    # Sizes that one way does not take leave the other; a way that is asked for has to take them.
    monkeypatch.setattr(_layer, "MoeAllToAll", none)
    assert layer().way == "fused"
    refused("rows", lambda: layer(way="apart"))


def test_a_layer_is_timed_with_the_most_tokens(layer: Any) -> None:
    fused, device, way = layer(way="fused"), mock.MagicMock(), mock.Mock()
    event = device.torch.cuda.Event.return_value
    event.elapsed_time.side_effect = [8, 4, 400, 12, 16]
    fused._world = mock.Mock()
    assert fused._time(device, way) == 12 / _layer.LAYERS
    assert way.layer.call_count == _layer.ROUNDS * (_layer.LAYERS + 1)
    assert device.torch.randn.call_args.args == (4, 8)
    assert fused._world.check.call_count == _layer.ROUNDS
