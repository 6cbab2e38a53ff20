"""Worlds, packs, and the description of this machine."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import peerwarp
from peerwarp import _core

# The tests may run away from the sources.
PACK = Path(os.environ.get("PEERWARP_TEST_PACK", Path(__file__).parents[2] / "tests/data/pack"))


def test_a_simulated_world_says_what_it_is() -> None:
    world = peerwarp.World.simulated(3)
    assert (world.ranks, world.rank, world.is_simulated) == (3, None, True)
    assert repr(world) == "<World of 3 simulated ranks>"
    world.check()
    world.reset()
    assert world.active == (0, 1, 2)
    for go_on in (world.go_on, lambda: world.deactivate(1), lambda: world.replace(1)):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            go_on()
        assert (error.value.field, error.value.value) == ("world", "simulated")
    with pytest.raises(peerwarp.InvalidArgument, match=r"World of 3 simulated ranks(?s:.)*one of several processes"):
        world.ticket()
    world.leave()


class Bytes:
    """A tensor of bytes."""

    def __init__(self, values: list[int], dtype: str, device: str) -> None:
        assert dtype == "uint8" and all(0 <= value < 256 for value in values)
        self.values, self.device = values, device

    def tolist(self) -> list[int]:
        return self.values


class Loaded:
    """What a stranger pickles: it has run code once it is loaded."""

    ran = False

    def __reduce__(self) -> tuple[object, tuple[object, str, bool]]:
        return setattr, (Loaded, "ran", True)


def fake_torch(
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    others: list[list[str] | bytes],
    machine: str | None = None,
    *,
    rank: int = 0,
    backends: str = "cpu:gloo,cuda:nccl",
) -> None:
    """As much of torch.distributed as `World.from_torch` uses before ranks meet. The others say what went wrong with them, or send
    bytes.
    """
    where = "cpu" if "cpu:" in backends else "cuda"

    def sent(values: list[int], other: list[str] | bytes) -> list[int]:
        if isinstance(other, bytes):
            return list(other.ljust(len(values), b"\0")[: len(values)])
        body = json.dumps([machine or json.loads(bytes(values[4:]).rstrip(b"\0"))[0], *other]).encode()
        return list((len(body).to_bytes(4, "little") + body).ljust(len(values), b"\0"))

    def all_gather(into: list[Bytes], own: Bytes, group: object = None) -> None:
        assert [tensor.device for tensor in (own, *into)] == [where] * (ranks + 1)
        all_of_them = [sent(own.values, other) for other in others]
        all_of_them.insert(rank, own.values)
        for tensor, values in zip(into, all_of_them, strict=True):
            tensor.values = values

    def broadcast(tensor: Bytes, src: int, group: object = None) -> None:
        assert (src, tensor.device) == (0, where)
        if rank != 0:
            tensor.values = sent(tensor.values, others[0])

    def unpickles(into: list[object], *arguments: object, **more: object) -> None:
        pickle.loads(pickle.dumps(Loaded()))

    dist = types.ModuleType("torch.distributed")
    dist.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: ranks > 0,
        get_world_size=lambda group=None: ranks,
        get_rank=lambda group=None: rank,
        get_backend_config=lambda group=None: backends,
        all_gather=all_gather,
        broadcast=broadcast,
        all_gather_object=unpickles,
        broadcast_object_list=unpickles,
    )
    torch = types.ModuleType("torch")
    torch.__dict__.update(tensor=Bytes, uint8="uint8")
    torch.distributed = dist  # type: ignore[attr-defined]
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)


def test_a_world_of_torch_needs_torch_and_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(peerwarp.MissingPackage, match="pip install torch"):
        peerwarp.World.from_torch()
    fake_torch(monkeypatch, 0, [])
    with pytest.raises(peerwarp.InvalidArgument, match="init_process_group"):
        peerwarp.World.from_torch()
    fake_torch(monkeypatch, 65, [])
    with pytest.raises(peerwarp.InvalidArgument, match="ranks of the group = 65"):
        peerwarp.World.from_torch()


def test_one_rank_needs_a_gpu_and_no_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, 1, [])
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "no driver")
    for make in (peerwarp.World.on_gpu, peerwarp.World.from_torch):
        with pytest.raises(peerwarp.NoDriver, match="no driver"):
            make()
        for arguments in ({"device": -1}, {"wait_budget": 0}, {"share_sms": "no"}, {"launches_at_once": 17}):
            with pytest.raises(peerwarp.InvalidArgument) as error:
                make(**arguments)
            assert error.value.field == next(iter(arguments))


def test_a_rank_without_a_gpu_is_reported_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    well = ["", ""]
    fake_torch(monkeypatch, 2, [well])
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "no driver")
    with pytest.raises(peerwarp.NoDriver, match="no driver"):
        peerwarp.World.from_torch()
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    for name, kind in (("driver", peerwarp.NoDriver), ("other", peerwarp.PeerwarpError)):
        fake_torch(monkeypatch, 2, [[name, "not over there"]])
        with pytest.raises(kind, match="rank 1: not over there"):
            peerwarp.World.from_torch()
    fake_torch(monkeypatch, 2, [well], "another")
    with pytest.raises(peerwarp.InvalidArgument, match="ranks 0 and 1 on two machines"):
        peerwarp.World.from_torch()
    fake_torch(monkeypatch, 2, [well])
    for arguments in ({"device": "cuda"}, {"device": -1}, {"wait_budget": 0}, {"form_timeout": "long"}):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            peerwarp.World.from_torch(**arguments)
        assert error.value.field == next(iter(arguments))


def test_ranks_meet_with_the_secret_of_the_environment_if_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Met:
        def __init__(self, *arguments: object) -> None:
            self.arguments = arguments

    fake_torch(monkeypatch, 2, [["", ""]])
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    monkeypatch.setattr(_core, "GpuWorld", Met)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("PEERWARP_SECRET", raising=False)
    site = tmp_path / "nvidia"
    site.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    drawn = peerwarp.World.from_torch(share_sms=True)
    assert (drawn.ranks, drawn.rank, drawn.is_simulated) == (2, 0, False)
    numbers, (address, secret), times, shared, compilers, _ = drawn._core.arguments
    assert (numbers, times, shared) == ((0, 2, 3), (60.0, 60.0), (True, False, 1))
    # PyTorch's wheels bring NVRTC, in a package without a file of its own.
    assert compilers[0] == str(site / "cu13" / "lib")
    assert peerwarp.World.from_torch(share_gpus=True)._core.arguments[3] == (False, True, 1)
    assert peerwarp.World.from_torch(launches_at_once=2)._core.arguments[3] == (False, False, 2)
    with pytest.raises(peerwarp.InvalidArgument) as error:
        peerwarp.World.from_torch(launches_at_once=17)
    assert error.value.field == "launches_at_once"
    assert address.startswith("127.0.0.1:")
    assert len(secret) == 64
    monkeypatch.setenv("PEERWARP_SECRET", "s" * 32)
    assert peerwarp.World.from_torch()._core.arguments[1][1] == "s" * 32


SECRET = "s" * 64

STRANGE = (
    pickle.dumps(Loaded()),
    len(pickle.dumps(Loaded())).to_bytes(4, "little") + pickle.dumps(Loaded()),
    b"",
    b"\xff" * 20_000,
    b"\x02\0\0\0{}",
    b"\x03\0\0\0[1]",
    b"\x02\0\0\0[]",
    b'\x0d\0\0\0["a","b",""]',
    b'\x11\0\0\0["a","","\\ud800"]',
    (9000).to_bytes(4, "little") + b"[" * 9000,
)


class Place:
    """In place of a world's native part: what it is made with, and what it is asked for."""

    def __init__(self, *arguments: object) -> None:
        self.arguments, self.replaced = arguments, []

    def replace(self, rank: int) -> None:
        self.replaced.append(rank)


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    monkeypatch.setattr(_core, "GpuWorld", Place)
    monkeypatch.setenv("PEERWARP_SECRET", SECRET)


def test_a_new_process_takes_a_place_by_a_ticket(with_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, 3, [["", ""], ["", ""]])
    options = {"wait_budget": 2.0, "form_timeout": 3.5, "share_gpus": True, "launches_at_once": 4}
    first = peerwarp.World.from_torch(**options)
    meeting = first._core.arguments[1]
    assert meeting[1] == SECRET
    # A new process has no group.
    monkeypatch.setitem(sys.modules, "torch", None)
    ticket = first.ticket()
    assert ticket.isascii()
    new = peerwarp.World.in_place_of(ticket, 2, device=5)
    assert new._core.arguments[:4] == ((2, 3, 5), meeting, (2.0, 3.5), (False, True, 4))
    assert (first._core.arguments[5:], new._core.arguments[5:]) == ((False,), (True,))
    assert (new.rank, new.ranks, new._gpu, new.is_simulated) == (2, 3, 5, False)
    # Its ticket serves the next one.
    assert new.ticket() == ticket
    first.replace(2)
    new.replace(2)
    assert (first._core.replaced, new._core.replaced) == ([2], [2])
    for rank in (3, -1, True, "2"):
        for replace in (first.replace, lambda rank: peerwarp.World.in_place_of(ticket, rank)):
            with pytest.raises(peerwarp.InvalidArgument, match=r"rank = (?s:.)*a whole number from 0 to 2"):
                replace(rank)
    assert first._core.replaced == [2]
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "no driver")
    with pytest.raises(peerwarp.NoDriver, match="no driver"):
        peerwarp.World.in_place_of(ticket, 2)


def test_a_ticket_of_another_world_or_version_is_refused_and_its_secret_kept(with_gpus: None) -> None:
    told = [_core.__version__, 3, ["127.0.0.1:80", SECRET], [1, 2.5], [False, True, 1]]

    def refused(ticket: object) -> None:
        with pytest.raises(peerwarp.InvalidArgument, match=r"World\.ticket\(\) returns in peerwarp") as error:
            peerwarp.World.in_place_of(ticket, 1, device=0)  # type: ignore[arg-type]
        assert error.value.field == "ticket"
        assert SECRET not in str(error.value)

    peerwarp.World.in_place_of(json.dumps(told).encode(), 1, device=0)
    for strange in (*STRANGE, b"null", b"7", b"{}", b"[1, 2, 3, 4, 5]", b'"abcde"', json.dumps(told).encode()[:-1]):
        refused(strange)
    refused(json.dumps(told))
    refused(None)
    changes: list[tuple[int, object]] = [
        (0, "0.0.0"),
        (1, 1),
        (1, 65),
        (2, ["10.0.0.1:80", SECRET]),
        (2, ["127.0.0.1:80", None]),
        (2, [80, SECRET]),
        (3, [0, 1]),
        (3, [1, SECRET]),
        (4, [0, True, 1]),
        (4, [True, SECRET, 1]),
        (4, [True, True, 17]),
    ]
    for at, value in changes:
        refused(json.dumps([*told[:at], value, *told[at + 1 :]]).encode())


def test_a_rank_that_does_not_come_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a GPU this is about who is missing, and without one about the GPU.
    fake_torch(monkeypatch, 2, [["", ""]])
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    with pytest.raises(peerwarp.PeerwarpError):
        peerwarp.World.from_torch(form_timeout=0.5)


def test_what_a_stranger_sends_into_the_group_is_an_error_and_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    monkeypatch.setattr(_core, "GpuWorld", lambda *arguments: arguments)
    for backends in ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo", "cuda:nccl"):
        for message in STRANGE:
            fake_torch(monkeypatch, 2, [message], backends=backends)
            with pytest.raises(peerwarp.InvalidArgument, match="message of rank 1 in the group"):
                peerwarp.World.from_torch()
        fake_torch(monkeypatch, 2, [["", ""]], backends=backends)
        peerwarp.World.from_torch()
    assert not Loaded.ran


def test_where_ranks_meet_is_an_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from peerwarp import _world

    torch = types.SimpleNamespace(tensor=Bytes, uint8="uint8")
    group = _world._Group(torch, types.SimpleNamespace(get_backend_config=lambda group: "cpu:gloo"), None, 2, 1)
    monkeypatch.setattr(_world, "_Group", lambda *arguments: group)
    monkeypatch.setattr(_world, "_agree", lambda group, own: (0, 60.0, 60.0))
    met: list[tuple[object, ...]] = []
    monkeypatch.setattr(_core, "GpuWorld", lambda *arguments: met.append(arguments))
    fake_torch(monkeypatch, 2, [["", ""]], rank=1)
    secret = "s" * 64
    monkeypatch.delenv("PEERWARP_SECRET", raising=False)
    for strange in ([], ["127.0.0.1:80"], ["10.0.0.1:80", secret], ["127.0.0.1:80 ", secret], ["127.0.0.1:1", secret, ""]):
        monkeypatch.setattr(group, "of_first", lambda own, strange=strange: strange)
        with pytest.raises(peerwarp.InvalidArgument, match="message of rank 0 in the group") as error:
            peerwarp.World.from_torch()
        assert secret not in str(error.value)
    monkeypatch.setattr(group, "of_first", lambda own: ["127.0.0.1:80", secret])
    peerwarp.World.from_torch()
    assert met[0][1] == ("127.0.0.1:80", secret)


def test_long_reasons_are_cut_and_strange_letters_arrive() -> None:
    from peerwarp import _world

    for text in ("no driver", "\N{SNOWMAN}" * 100_000, '\0\n"' * 9_000, "\ud800x", ""):
        message = _world._encoded(["machine", "other", text])
        assert len(message) == len(_world._encoded([]))
        machine, kind, told = _world._decoded(1, message)
        assert (machine, kind) == ("machine", "other")
        assert text.replace("\ud800", "?").startswith(told) and len(told) >= min(len(text), 900)


def test_no_message_of_a_group_is_unpickled() -> None:
    # `all_gather_object`, `broadcast_object_list` and their like load what others have sent.
    for source in Path(peerwarp.__file__).parent.glob("*.py"):
        words = re.findall(
            r"\w+_object(?:_list)?\b|\bpickle\.\w|\bimport pickle\b|torch\.load\b", source.read_text(encoding="utf-8")
        )
        assert words == [], source


def test_wrong_arguments_of_a_world_of_gpus_are_refused() -> None:
    from peerwarp._core import GpuWorld, draw_secret

    secret = draw_secret()
    assert len(secret) == 64
    assert secret != draw_secret()
    with pytest.raises(peerwarp.InvalidArgument) as error:
        GpuWorld((0, 2, 0), ("127.0.0.1:1", "short"), (1.0, 1.0), (False, False, 1), [], False)
    assert error.value.field == "a world's secret"
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            GpuWorld((0, 2, 0), ("127.0.0.1:1", secret), (seconds, 1.0), (False, False, 1), [], False)
        assert error.value.field == "wait_budget"
    # A process that takes a place needs a GPU, and no other rank yet.
    if _core.why_no_gpu() is not None:
        with pytest.raises(peerwarp.NoDriver):
            GpuWorld((0, 2, 0), ("127.0.0.1:1", secret), (1.0, 1.0), (False, False, 1), [], True)


@pytest.mark.skipif(not PACK.exists(), reason="without the repository")
def test_a_pack_says_what_its_kernels_take(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    shutil.copytree(PACK, folder)
    manifest = json.loads((folder / "pack.json").read_text())
    manifest["kernels"][0]["params"] = ["x: Local of 8 F32", "words: Ll of 4 U32"]
    (folder / "pack.json").write_text(json.dumps(manifest))

    pack = peerwarp.Pack.open(folder)
    kernel = pack.kernel("scale_n8", "cuda:sm_90a")
    assert (kernel.family, kernel.ranks, kernel.blocks, kernel.block_threads) == ("scale", 2, 4, 64)
    assert kernel.buffers == (
        peerwarp.Buffer("x", "local", "f32", 8, 32),
        peerwarp.Buffer("words", "ll", "u32", 4, 32),
    )
    with pytest.raises(peerwarp.InvalidArgument) as error:
        pack.kernel("other")
    assert "scale_n8" in error.value.allowed
    with pytest.raises(peerwarp.InvalidArgument):
        pack.kernel("scale_n8", "cuda:sm_1")

    manifest["kernels"][0]["params"] = ["x: Nothing"]
    (folder / "pack.json").write_text(json.dumps(manifest))
    with pytest.raises(peerwarp.PeerwarpError, match="x: Nothing"):
        peerwarp.Pack.open(folder)


def test_what_is_no_pack_is_reported(tmp_path: Path) -> None:
    with pytest.raises(peerwarp.PeerwarpError, match=r"pack\.json"):
        peerwarp.Pack.open(tmp_path)
    (tmp_path / "pack.json").write_text("{}")
    with pytest.raises(peerwarp.PeerwarpError, match=r"pack\.json"):
        peerwarp.Pack.open(tmp_path)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def test_doctor_says_what_is_there() -> None:
    ran = python("-m", "peerwarp", "doctor")
    assert ran.returncode in (0, 1), ran.stderr
    for word in ("NVIDIA GPUs", "AMD GPUs", "links", "NVRTC", "numpy", "torch", "simulated worlds: yes"):
        assert word in ran.stdout


def test_the_command_is_there_too() -> None:
    family = ("--family", "all_gather", "elements=100", "ranks=2", "dtype=bf16")
    ran = python("-m", "peerwarp", "run", *family)
    assert ran.returncode == 0, ran.stderr
    assert "all_gather" in ran.stdout
    refused = python("-m", "peerwarp", "run", "--family", "nothing")
    assert refused.returncode == 2
    assert "nothing" in refused.stderr
    assert "doctor" not in refused.stdout


def test_bench_of_the_module_is_that_of_torch() -> None:
    said = python("-m", "peerwarp", "--help")
    commands = [line.split()[0] for line in said.stdout.splitlines() if line.startswith("  ") and line.split()]
    assert said.returncode == 0 and {"doctor", "bench", "run"} <= set(commands), said.stdout
    said = python("-m", "peerwarp", "bench", "--help")
    assert said.returncode == 0 and "python -m peerwarp bench" in said.stdout
    refused = python("-m", "peerwarp", "bench", "--model", "nobodys")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")


def test_importing_it_imports_neither_numpy_nor_torch() -> None:
    ran = python("-c", "import sys, peerwarp; print([m for m in ('numpy', 'torch') if m in sys.modules])")
    assert ran.stdout.strip() == "[]", ran.stderr
