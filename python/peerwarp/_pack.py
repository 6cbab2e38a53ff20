"""What is in a pack."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from peerwarp import _core
from peerwarp._operation import Operation, _gpu_world, settings
from peerwarp._world import World
from peerwarp.errors import InvalidArgument


@dataclass(frozen=True)
class Buffer:
    """A parameter of a kernel: memory that a caller allocates, or a number.

    Attributes:
        name: its name.
        kind: `"local"`, `"symmetric"`, `"window"`, `"flags"`, `"packets"`, `"ll"`, `"epochword"`, `"counters"`, `"blockflags"`,
            `"scalar"`.
        dtype: the type of its elements: `"f32"`, `"bf16"`, `"u32"`.
        elements: how many there are.
        bytes: its size.
    """

    name: str
    kind: str
    dtype: str
    elements: int
    bytes: int


@dataclass(frozen=True)
class Kernel:
    """A kernel of a pack.

    Attributes:
        name: the name of its variant.
        family: its family: `"moe_dispatch"`.
        target: what it is compiled for: `"cuda:sm_90a"`.
        ranks: the world size that it is for.
        entry: its name in the object.
        blocks: blocks of its grid.
        block_threads: threads of a block.
        buffers: its parameters, in order.
    """

    name: str
    family: str
    target: str
    ranks: int
    entry: str
    blocks: int
    block_threads: int
    buffers: tuple[Buffer, ...]


class Pack:
    """Kernels that `peerwarp pack` compiled. Made by `Pack.open`.

    Attributes:
        path: its folder.
        kernels: all of its kernels.
        families: names of the key fields of each family, by the family's name.
    """

    def __init__(self, path: str, core: _core.PackFile) -> None:
        self.path, self._core = path, core
        kernels = []
        for name, family, target, ranks, entry, blocks, threads, params in core.kernels():
            buffers = tuple(Buffer(*param) for param in params)
            kernels.append(Kernel(name, family, target, ranks, entry, blocks, threads, buffers))
        self.kernels = tuple(kernels)
        self.families = {name: tuple(fields) for name, _, fields in core.families()}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Pack:
        """The pack in a folder. All of its files are read, and compared with the hashes in its manifest."""
        folder = os.fspath(path)
        return cls(folder, _core.PackFile(folder))

    def operation(self, family: str, world: World, **key: Any) -> Operation:
        """An operation of a family, for a key: `pack.operation("kv_push", world, page=65536, pool=64)`.

        The variant is the one for just this key, else the one that covers it with as little more as there is. The world says the
        number of ranks. A GPU runs the pack's machine code; simulated ranks run the kernel that the pack carries.
        """
        core = _gpu_world(world)
        return Operation(world, self._core.select(family, settings(key), world.ranks, core))

    def kernel(self, name: str, target: str | None = None) -> Kernel:
        """The kernel of a variant, for a target where the pack has several."""
        named = [kernel for kernel in self.kernels if kernel.name == name]
        found = [kernel for kernel in named if target in (None, kernel.target)]
        if len(found) == 1:
            return found[0]
        if named:
            targets = ", ".join(kernel.target for kernel in named)
            raise InvalidArgument("target", target, f"one of those that {name} is compiled for: {targets}")
        raise InvalidArgument("name", name, ", ".join(sorted({kernel.name for kernel in self.kernels})) or "none")

    def __repr__(self) -> str:
        return f"<Pack of {len(self.kernels)} kernels in {self.path}>"
