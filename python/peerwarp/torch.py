"""Operations of PyTorch: `torch.ops.peerwarp.*`, for programs that are compiled, and functions with gradients.

The operations write to tensors that they are given and return nothing, so that a compiler neither reorders nor drops them. They
know a `Collectives` or `MoeAllToAll` by a number, which `handle(..)` gives.

    >>> h = peerwarp.torch.handle(peerwarp.Collectives(world))
    >>> torch.ops.peerwarp.all_reduce(x, out, h, "sum")

`define` does so for an `Operation` of any family.

Import this module for it; it needs PyTorch.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor

from peerwarp._collectives import Collectives
from peerwarp._device import DeviceMoe, DispatchedTensors, Step
from peerwarp._moe import MoeAllToAll
from peerwarp._operation import Operation, Parameter
from peerwarp.errors import InvalidArgument

_numbers = itertools.count(1)
_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_handles: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

#: What dispatch leaves, in the order in which operations take it; what there is not, for a layout or type, is left out.
BUFFERS = ("rows", "scales", "gather", "ids", "sent_weights", "expert_start", "expert_rows", "tokens_from", "overflow", "needed")


def handle(of: Collectives | MoeAllToAll | Operation) -> int:
    """The number by which operations of `torch.ops` know what they run, as long as it lives."""
    if not isinstance(of, (Collectives, MoeAllToAll, Operation)) or of._device is None:
        raise InvalidArgument("of", type(of).__name__, "a Collectives, MoeAllToAll or Operation of a world of GPUs")
    number = _handles.get(of)
    if number is None:
        number = _handles[of] = next(_numbers)
        _known[number] = of
    return number


def buffers(moe: MoeAllToAll, max_tokens: int | None = None) -> list[Tensor]:
    """New tensors for what dispatch brings, as `torch.ops.peerwarp.moe_dispatch` and `moe_combine` take them: see `BUFFERS`.

    They are of the capacity for `max_tokens`, as of `MoeAllToAll.dispatch`, and decide which one the operations take.
    """
    return [torch.empty_like(own) for own in _left(_device_moe(moe).step(max_tokens))]


def _left(step: Step) -> list[Tensor]:
    """What dispatch leaves in memory of the operation. Peers write there: a compiler must not believe that it may."""
    return [step.buffers[name] for name in BUFFERS if name in step.buffers]


def _device_moe(moe: MoeAllToAll) -> DeviceMoe:
    if moe._device is None:
        raise InvalidArgument("moe", "of simulated ranks", "a MoeAllToAll of a world of GPUs")
    return moe._device


def _of(number: int, kind: type) -> Any:
    found = _known.get(number)
    if not isinstance(found, kind):
        raise InvalidArgument("handle", number, f"that of a {kind.__name__} that is alive")
    return found


def _all_reduce(x: Tensor, out: Tensor, number: int, op: str) -> None:
    _of(number, Collectives).all_reduce(x, op, out=out)


def _reduce_scatter(x: Tensor, out: Tensor, number: int, op: str) -> None:
    _of(number, Collectives).reduce_scatter(x, op, out=out)


def _all_gather(x: Tensor, out: Tensor, number: int) -> None:
    _of(number, Collectives).all_gather(x, out=out)


def _all_to_all(x: Tensor, out: Tensor, number: int) -> None:
    _of(number, Collectives).all_to_all(x, out=out)


def _broadcast(x: Tensor, out: Tensor, number: int, root: int) -> None:
    _of(number, Collectives).broadcast(x, root, out=out)


def _moe_dispatch(x: Tensor, ids: Tensor, weights: Tensor, scales: Tensor | None, left: list[Tensor], number: int) -> None:
    moe = _of(number, MoeAllToAll)
    places = {step.places: step for step in _device_moe(moe).steps}
    step = places.get(len(left[0])) if left else None
    if step is None:
        raise InvalidArgument("left", len(left[0]) if left else "nothing", "what peerwarp.torch.buffers made for this operation")
    moe._last = moe.dispatch(x, ids, weights, scales=scales, max_tokens=step.tokens)
    for into, own in zip(left, _left(step), strict=True):
        into.copy_(own)


def _moe_combine(y: Tensor, ids: Tensor, weights: Tensor, out: Tensor, left: list[Tensor], number: int) -> None:
    moe = _of(number, MoeAllToAll)
    if moe._last is None:
        raise InvalidArgument("moe", "no dispatch", "a dispatch by moe_dispatch before moe_combine")
    moe.combine(moe._last, y, out=out)


#: Names, arguments that come first, and how each is done. `left` is written by both halves of MoE: that keeps them in order.
_OPS = (
    ("all_reduce(Tensor x, Tensor(a!) out, int handle, str op) -> ()", _all_reduce),
    ("reduce_scatter(Tensor x, Tensor(a!) out, int handle, str op) -> ()", _reduce_scatter),
    ("all_gather(Tensor x, Tensor(a!) out, int handle) -> ()", _all_gather),
    ("all_to_all(Tensor x, Tensor(a!) out, int handle) -> ()", _all_to_all),
    ("broadcast(Tensor x, Tensor(a!) out, int handle, int root) -> ()", _broadcast),
    (
        "moe_dispatch(Tensor x, Tensor ids, Tensor weights, Tensor? scales, Tensor(a!)[] left, int handle) -> ()",
        _moe_dispatch,
    ),
    (
        "moe_combine(Tensor y, Tensor ids, Tensor weights, Tensor(a!) out, Tensor(b!)[] left, int handle) -> ()",
        _moe_combine,
    ),
)


def _fake(*_: Any) -> None:
    """What an operation returns, of tensors without memory: nothing."""


_library = torch.library.Library("peerwarp", "DEF")
for _schema, _run in _OPS:
    _library.define(_schema)
    _name = _schema.partition("(")[0]
    _library.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"peerwarp::{_name}", _fake, lib=_library)


#: One library of `torch.ops` for each family.
_families: dict[str, torch.library.Library] = {}
_defined: dict[str, Any] = {}


def define(of: Operation) -> Any:
    """`torch.ops.peerwarp_<family>.<variant>`: it takes what the operation does, in the order of `parameters`, and then the number
    that `handle` gives. Outputs are mutated, and nothing is returned.

        >>> push = peerwarp.torch.define(op)
        >>> push(x, out, peerwarp.torch.handle(op))
    """
    handle(of)
    if of.name in _defined:
        return _defined[of.name]
    namespace = f"peerwarp_{of.family}"
    library = _families.setdefault(of.family, torch.library.Library(namespace, "FRAGMENT"))
    arguments = ", ".join(_argument(parameter, at) for at, parameter in enumerate(of.parameters))
    library.define(f"{of.name}({arguments}, int handle) -> ()")
    names = [parameter.name for parameter in of.parameters]

    def run(*passed: Any) -> None:
        _of(passed[-1], Operation)(**dict(zip(names, passed[:-1], strict=True)))

    library.impl(of.name, run, "CUDA")
    torch.library.register_fake(f"{namespace}::{of.name}", _fake, lib=library)
    _defined[of.name] = getattr(getattr(torch.ops, namespace), of.name)
    return _defined[of.name]


def _argument(parameter: Parameter, at: int) -> str:
    if parameter.is_number:
        return f"{'float' if parameter.dtype == 'f32' else 'int'} {parameter.name}"
    written = f"(a{at}!)" if parameter.is_output else ""
    return f"Tensor{written} {parameter.name}"


class _Dispatch(torch.autograd.Function):
    """Dispatch of rank-major rows. Its gradient is a combine, as each rank's row came from one token."""

    @staticmethod
    def forward(ctx: Any, moe: MoeAllToAll, x: Tensor, ids: Tensor, weights: Tensor, sent: list[Any]) -> Tensor:
        d = moe.dispatch(x, ids, weights)
        sent.append(d)
        ctx.moe, ctx.round = moe, sent
        # The next dispatch overwrites them, and gradients of the experts need them.
        return _where_there(d, d.rows)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (rows,) = grads
        # Combine's gradient has dispatched by the same routing.
        return None, ctx.moe.combine(ctx.round[-1], _where_there(ctx.round[-1], rows)), None, None, None


class _Combine(torch.autograd.Function):
    """Combine of rank-major rows. Its gradient is a dispatch by the same routing."""

    @staticmethod
    def forward(ctx: Any, moe: MoeAllToAll, y: Tensor, ids: Tensor, weights: Tensor, sent: list[Any]) -> Tensor:
        ctx.moe, ctx.round = moe, sent
        ctx.save_for_backward(ids, weights)
        combined: Tensor = moe.combine(sent[-1], y)
        return combined

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (out,) = grads
        ids, weights = ctx.saved_tensors
        d = ctx.moe.dispatch(out.contiguous(), ids, weights)
        ctx.round.append(d)
        return None, _where_there(d, d.rows), None, None, None


def _where_there(d: DispatchedTensors, rows: Tensor) -> Tensor:
    """Zeros where no row came: there is anything."""
    return rows.masked_fill((d.local_ids < 0).all(1, keepdim=True), 0.0).contiguous()


class Round:
    """A dispatch and a combine with gradients, of rows in rank-major layout.

    Gradients flow to `x` and from the result to `y`; weights travel as numbers and get none, so that a router is trained by what
    the caller does with `weights` on its own rank. Backward runs the two in the other order, on all ranks: rounds of one
    operation have to be backward in the reverse order of forward, which autograd does where one layer feeds the next.
    """

    def __init__(self, moe: MoeAllToAll, ids: Tensor, weights: Tensor) -> None:
        device = _device_moe(moe)
        if device.layout != "rank_major" or device.dtype == "fp8":
            allowed = "rank_major rows of bf16 or fp16, which have gradients"
            raise InvalidArgument("moe", f"{device.layout} rows of {device.dtype}", allowed)
        self._moe, self._ids, self._weights = moe, ids, weights
        self._sent: list[DispatchedTensors] = []

    def dispatch(self, x: Tensor) -> Tensor:
        """The rows `(R * T, hidden)` that came; what else came is in `dispatched`."""
        rows: Tensor = _Dispatch.apply(self._moe, x, self._ids, self._weights, self._sent)
        return rows

    @property
    def dispatched(self) -> DispatchedTensors:
        """What the last dispatch brought: see `DispatchedTensors`."""
        return self._sent[-1]

    def combine(self, y: Tensor) -> Tensor:
        """The combined rows `(n, hidden)`."""
        combined: Tensor = _Combine.apply(self._moe, y, self._ids, self._weights, self._sent)
        return combined
