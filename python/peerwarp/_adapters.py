"""What adapters for frameworks share: operations that all layers of a model take, and whether an adapter is switched on."""

from __future__ import annotations

import os
from typing import Any

from peerwarp._moe import MoeAllToAll
from peerwarp._world import World
from peerwarp.errors import InvalidArgument

#: Capacities below the most tokens of a rank: a step of few tokens is not to receive as many rows as the largest.
CAPACITIES = (8, 64, 512, 4096)

_worlds: dict[Any, World] = {}
_operations: dict[tuple[Any, ...], MoeAllToAll] = {}


def is_on(variable: str) -> bool:
    """Whether a variable of the environment switches something on."""
    value = os.environ.get(variable, "0")
    if value not in ("", "0", "1"):
        raise InvalidArgument(variable, value, "1, or 0 or nothing")
    return value == "1"


def operation(
    group: Any,
    *,
    hidden: int,
    experts: int,
    topk: int,
    max_tokens: int,
    dtype: str,
    empty_id: int = -1,
    memory: object = None,
) -> MoeAllToAll:
    """Rank-major dispatch and combine of a `torch.distributed` group, which has one world: made with the first call for a shape.

    Layers of one shape take turns with one operation, unless `memory` tells them apart. All ranks of the group call it in the same
    order, and none while a graph is captured.
    """
    key = (group, hidden, experts, topk, max_tokens, dtype, empty_id, memory)
    made = _operations.get(key)
    if made is None:
        if group not in _worlds:
            _worlds[group] = World.from_torch(group)
        sizes = {"hidden": hidden, "experts": experts, "topk": topk, "max_tokens": max_tokens}
        few = [tokens for tokens in CAPACITIES if tokens < max_tokens]
        made = _operations[key] = MoeAllToAll(_worlds[group], **sizes, dtype=dtype, capacities=few, empty_id=empty_id)
    return made


def rows_of(dtype: object) -> str | None:
    """Our name of a PyTorch type that rows may have without scales."""
    return {"torch.bfloat16": "bf16", "torch.float16": "fp16"}.get(str(dtype))
