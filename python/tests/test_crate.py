"""Crates that are built on this machine, with a cargo that is a script and the program of examples/kernels."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import peerwarp
from conftest import random, same_bits
from peerwarp import InvalidArgument, PeerwarpError, World


@pytest.fixture
def crate(tmp_path: Path) -> Path:
    """A folder with a manifest."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/Cargo.toml").write_text("[package]\n", encoding="utf-8")
    return tmp_path / "kernels"


@pytest.fixture
def program() -> str:
    """The program of examples/kernels."""
    found = os.environ.get("PEERWARP_TEST_PROGRAM")
    if found is None:
        pytest.skip("PEERWARP_TEST_PROGRAM names no program of examples/kernels")
    return found


def cargo(crate: Path, monkeypatch: pytest.MonkeyPatch, executables: list[str], code: int = 0) -> None:
    """A cargo that has built these programs."""
    lines = [
        json.dumps({"manifest_path": str(crate / "Cargo.toml"), "target": {"kind": ["bin"]}, "executable": executable})
        for executable in executables
    ]
    other = json.dumps({"manifest_path": "/other/Cargo.toml", "target": {"kind": ["bin"]}, "executable": "/other"})
    script = crate.parent / "bin/cargo"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\ncat <<'END'\n" + "\n".join([*lines, other]) + f"\nEND\necho told >&2\nexit {code}\n", encoding="utf-8"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")


def test_a_crate_packs_what_operations_ask_for(crate: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cargo(crate, monkeypatch, [program])
    built = peerwarp.build(crate)
    assert built.families["ring_gather"] == ("elements", "ranks", "dtype")
    ring = built.operation("ring_gather", World.simulated(3), elements=77, dtype="f32")
    x, out = [random((77,), "float32", rank) for rank in range(3)], [np.zeros((3, 77), np.float32) for _ in range(3)]
    ring(x=x, out=out)
    assert all(same_bits(found, np.stack(x)) for found in out)
    with pytest.raises(InvalidArgument, match="histogram, kv_push, matmul_gelu, ring_gather, ulysses"):
        built.operation("ring", World.simulated(2))
    with pytest.raises(PeerwarpError, match=r"tokens = 7(.|\n)*a multiple of the 2 ranks"):
        built.operation("ulysses", World.simulated(2), tokens=7, heads=2, dim=8)


def test_what_a_crate_lacks_is_named(crate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="path = "):
        peerwarp.build(crate.parent)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PeerwarpError, match=r"rustup\.rs"):
        peerwarp.build(crate)
    cargo(crate, monkeypatch, ["/a/one", "/a/two"])
    with pytest.raises(InvalidArgument, match=r"one, two(.|\n)*`program` names it"):
        peerwarp.build(crate)


def test_cargo_builds_the_named_program_alone(crate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cargo(crate, monkeypatch, [], code=101)
    script = crate.parent / "bin/cargo"
    script.write_text('#!/bin/sh\necho "$@" >&2\nexit 101\n', encoding="utf-8")
    with pytest.raises(PeerwarpError, match="--profile release --bin two "):
        peerwarp.build(crate, program="two")
    with pytest.raises(PeerwarpError) as whole:
        peerwarp.build(crate)
    assert "--bin" not in str(whole.value)


def test_what_cargo_says_is_reported(crate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cargo(crate, monkeypatch, [], code=101)
    with pytest.raises(PeerwarpError, match=r"does not build:(.|\n)*told"):
        peerwarp.build(crate)
