"""Worlds, packs, and what is told of this machine."""

from __future__ import annotations

import json
import os
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
    world.leave()


def fake_torch(monkeypatch: pytest.MonkeyPatch, ranks: int, others: list[object], machine: str | None = None) -> None:
    """As much of torch.distributed as `World.from_torch` uses before ranks meet: this process is rank 0, on its machine."""

    def all_gather_object(into: list[object], own: tuple[str, object], group: object = None) -> None:
        into[:] = [own, *((machine or own[0], other) for other in others)]

    def broadcast_object_list(told: list[object], src: int, group: object = None) -> None:
        assert src == 0

    dist = types.ModuleType("torch.distributed")
    dist.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: ranks > 0,
        get_world_size=lambda group=None: ranks,
        get_rank=lambda group=None: 0,
        all_gather_object=all_gather_object,
        broadcast_object_list=broadcast_object_list,
    )
    torch = types.ModuleType("torch")
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
    fake_torch(monkeypatch, 1, [])
    with pytest.raises(peerwarp.InvalidArgument, match="ranks of the group = 1"):
        peerwarp.World.from_torch()


def test_a_rank_without_a_gpu_is_told_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, 2, [None])
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "no driver")
    with pytest.raises(peerwarp.NoDriver, match="no driver"):
        peerwarp.World.from_torch()
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    for is_driver, kind in ((True, peerwarp.NoDriver), (False, peerwarp.PeerwarpError)):
        fake_torch(monkeypatch, 2, [(is_driver, "not over there")])
        with pytest.raises(kind, match="rank 1: not over there"):
            peerwarp.World.from_torch()
    fake_torch(monkeypatch, 2, [None], "another")
    with pytest.raises(peerwarp.InvalidArgument, match="ranks 0 and 1 on two machines"):
        peerwarp.World.from_torch()
    fake_torch(monkeypatch, 2, [None])
    for arguments in ({"device": "cuda"}, {"device": -1}, {"wait_budget": 0}, {"form_timeout": "long"}):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            peerwarp.World.from_torch(**arguments)
        assert error.value.field == next(iter(arguments))


def test_ranks_meet_with_the_secret_of_the_environment_if_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Met:
        def __init__(self, *arguments: object) -> None:
            self.arguments = arguments

    fake_torch(monkeypatch, 2, [None])
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    monkeypatch.setattr(_core, "GpuWorld", Met)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("PEERWARP_SECRET", raising=False)
    site = tmp_path / "nvidia"
    site.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    drawn = peerwarp.World.from_torch(share_sms=True)
    assert (drawn.ranks, drawn.rank, drawn.is_simulated) == (2, 0, False)
    numbers, (address, secret), times, shared, compilers = drawn._core.arguments
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


def test_a_rank_that_does_not_come_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a GPU this is about who is missing, and without one about the GPU.
    fake_torch(monkeypatch, 2, [None])
    monkeypatch.setattr(_core, "why_no_gpu", lambda: None)
    with pytest.raises(peerwarp.PeerwarpError):
        peerwarp.World.from_torch(form_timeout=0.5)


def test_what_a_world_of_gpus_is_told_wrongly_is_refused() -> None:
    from peerwarp._core import GpuWorld, draw_secret

    secret = draw_secret()
    assert len(secret) == 64
    assert secret != draw_secret()
    with pytest.raises(peerwarp.InvalidArgument) as error:
        GpuWorld((0, 2, 0), ("127.0.0.1:1", "short"), (1.0, 1.0), (False, False, 1), [])
    assert error.value.field == "a world's secret"
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            GpuWorld((0, 2, 0), ("127.0.0.1:1", secret), (seconds, 1.0), (False, False, 1), [])
        assert error.value.field == "wait_budget"


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


def test_what_is_no_pack_is_told(tmp_path: Path) -> None:
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
    said = python("-m", "peerwarp", "bench", "--help")
    assert said.returncode == 0 and "python -m peerwarp bench" in said.stdout
    refused = python("-m", "peerwarp", "bench", "--model", "nobodys")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")


def test_importing_it_imports_neither_numpy_nor_torch() -> None:
    ran = python("-c", "import sys, peerwarp; print([m for m in ('numpy', 'torch') if m in sys.modules])")
    assert ran.stdout.strip() == "[]", ran.stderr
