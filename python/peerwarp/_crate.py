"""Crates of kernels that are built and packed on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peerwarp._device import Device
from peerwarp._operation import Operation, settings
from peerwarp._pack import Pack
from peerwarp._world import World, compilers, runs_on
from peerwarp.errors import InvalidArgument, PeerwarpError


class Crate:
    """A crate whose families are packed when an operation asks for them. Made by `build`.

    Attributes:
        path: its folder.
        program: its program, which has Peerwarp's commands.
        families: names of the key fields of each family, by the family's name.
    """

    def __init__(self, path: Path, program: str) -> None:
        self.path, self.program = path, program
        listed = json.loads(_run([program, "list", "families", "--json"], f"{program} is no program of Peerwarp's commands"))
        key = {family["name"]: [field for field in family["fields"] if field["role"] == "key"] for family in listed}
        self.families = {name: tuple(field["name"] for field in fields) for name, fields in key.items()}
        self._ranks = {name: [field["name"] for field in fields if field["ranks"]] for name, fields in key.items()}

    def operation(self, family: str, world: World, **key: Any) -> Operation:
        """An operation of a family, for a key: as `Pack.operation` of a pack that has just this variant.

        The kernel is compiled for the world's GPU. Simulated ranks take it as it is compiled for `cuda:sm_90a`.
        """
        if family not in self.families:
            raise InvalidArgument("family", family, ", ".join(self.families))
        on = runs_on(world)
        target = on.core.target_name() if isinstance(on, Device) else "cuda:sm_90a"
        asked = dict.fromkeys(self._ranks[family], world.ranks) | key
        with tempfile.TemporaryDirectory(prefix="peerwarp-") as folder:
            words = [f"{name}={value}" for name, value in settings(asked)]
            command = [self.program, "pack", "--family", family, *words, "--target", target, "--out", folder]
            _run(command, f"{family} cannot be packed")
            return Pack.open(folder).operation(family, world, **key)

    def __repr__(self) -> str:
        return f"<Crate of {', '.join(self.families)} in {self.path}>"


def build(path: str | os.PathLike[str], *, profile: str = "release", program: str | None = None) -> Crate:
    """Builds a crate of kernels, whose `main` is `peerwarp::cli::main(..)`. It needs Rust.

    The first build takes minutes, and prints nothing meanwhile.

    Args:
        path: the crate's folder.
        profile: cargo's profile.
        program: which of the crate's programs, if it has several.
    """
    folder = Path(path).resolve()
    manifest = folder / "Cargo.toml"
    if not manifest.is_file():
        raise InvalidArgument("path", path, "the folder of a crate, with its Cargo.toml")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise PeerwarpError("cargo is not on the PATH: peerwarp.build needs Rust, see https://rustup.rs")
    command = [cargo, "build", "--manifest-path", str(manifest), "--profile", profile, *(["--bin", program] if program else [])]
    lines = _run([*command, "--message-format", "json-render-diagnostics"], f"{folder} does not build").splitlines()
    built = [json.loads(line) for line in lines if line.startswith("{")]
    own = [one for one in built if one.get("manifest_path") == str(manifest) and one.get("executable")]
    programs = [one["executable"] for one in own if "bin" in one["target"]["kind"]]
    if len(programs) != 1:
        names = ", ".join(Path(one).name for one in programs) or "none"
        raise InvalidArgument("programs of the crate", names, "one, whose main is peerwarp::cli::main(..): `program` names it")
    return Crate(folder, programs[0])


def _run(command: Sequence[str], failed: str) -> str:
    """Runs a command and returns its output. `PEERWARP_NVRTC` names the compiler; by default it is that of PyTorch's wheels."""
    libraries = [str(library) for place in compilers() if (library := Path(place, "libnvrtc.so.13")).is_file()]
    compiler = {"PEERWARP_NVRTC": libraries[0]} if libraries else {}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=compiler | dict(os.environ))
    if ran.returncode:
        raise PeerwarpError(f"{failed}:\n{(ran.stdout + ran.stderr).strip()}")
    return ran.stdout
