"""Collectives and MoE dispatch and combine of Peerwarp.

Ranks are *simulated*: kernels are traced as for GPUs, run on this machine's CPU, and every access to memory is checked
for races. Arrays are NumPy's, or anything that speaks DLPack and is in the CPU's memory. Or each rank is a process with a GPU
(`World.from_torch`), and arrays are tensors of PyTorch.

    >>> import numpy as np, peerwarp
    >>> world = peerwarp.World.simulated(2)
    >>> peerwarp.Collectives(world).all_reduce([np.ones(8, np.float32)] * 2)[0]
    array([2., 2., 2., 2., 2., 2., 2., 2.], dtype=float32)
"""

from peerwarp._collectives import Collectives
from peerwarp._core import __version__
from peerwarp._crate import Crate, build
from peerwarp._device import DispatchedTensors
from peerwarp._layer import MoeLayer, MoeWeights
from peerwarp._moe import Dispatched, MoeAllToAll
from peerwarp._operation import Operation, Parameter, operation
from peerwarp._pack import Buffer, Kernel, Pack
from peerwarp._world import World
from peerwarp.errors import (
    Aborted,
    Finding,
    InvalidArgument,
    MissingPackage,
    NoDriver,
    PeerwarpError,
    RaceFound,
)

__all__ = [
    "Aborted",
    "Buffer",
    "Collectives",
    "Crate",
    "Dispatched",
    "DispatchedTensors",
    "Finding",
    "InvalidArgument",
    "Kernel",
    "MissingPackage",
    "MoeAllToAll",
    "MoeLayer",
    "MoeWeights",
    "NoDriver",
    "Operation",
    "Pack",
    "Parameter",
    "PeerwarpError",
    "RaceFound",
    "World",
    "__version__",
    "build",
    "operation",
]
