"""Not run with SGLang yet: its signatures were compared with those of SGLang 0.5.23 (`FlashinferDispatcher`, `HookRegistry`).

A plugin of SGLang, by the entry point `sglang.srt.plugins`. It does nothing unless `PEERWARP_SGLANG=1`: then the dispatcher of
`--moe-a2a-backend flashinfer` moves its rows with Peerwarp, and all else of it stays as it is. Rows are bf16.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from peerwarp._adapters import is_on, operation
from peerwarp.errors import InvalidArgument, PeerwarpError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE = "PEERWARP_SGLANG"
DISPATCHER = "sglang.srt.layers.moe.token_dispatcher.flashinfer.FlashinferDispatcher"


class MoeAlltoAll:
    """As much of flashinfer's class of this name as SGLang's dispatcher calls. Rows stand `[rank][token]`, with room for `capacity`
    tokens of a rank."""

    def __init__(
        self,
        dispatcher: Any,
        group: Any,
        hidden: int,
        *,
        mapping: Any,
        max_num_tokens: int,
        top_k: int,
        num_experts: int,
        workspace_size_per_rank: int,
        mnnvl_config: Any,
    ) -> None:
        # The dispatcher tells paths that are live at once apart by the size of their workspace.
        self._moe = operation(
            group,
            hidden=hidden,
            experts=num_experts,
            topk=top_k,
            max_tokens=max_num_tokens,
            dtype="bf16",
            empty_id=dispatcher.invalid_token_expert_id,
            memory=workspace_size_per_rank,
        )
        self._ranks = dispatcher.ep_size
        self._dispatched: Any = None

    @property
    def capacity(self) -> int:
        """The tokens of a rank that the rows of the last dispatch have room for."""
        return int(self._last().capacity)

    def dispatch(
        self,
        token_selected_experts: Any,
        input_payloads: list[Any],
        runtime_max_tokens_per_rank: int,
        invalid_token_expert_id: int | None = None,
        expert_id_payload_index: int | None = None,
    ) -> list[Any]:
        if len(input_payloads) != 3:
            raise InvalidArgument("payloads", len(input_payloads), "rows of bf16, ids and weights: 3")
        x, ids, weights = input_payloads
        d = self._moe.dispatch(x, ids, weights, max_tokens=runtime_max_tokens_per_rank)
        self._dispatched = d
        return [one.unflatten(0, (self._ranks, d.capacity)) for one in (d.rows, d.ids, d.sent_weights)]

    def get_combine_payload_tensor_in_workspace(self, runtime_max_tokens_per_rank: int, hidden_size: int, dtype: Any) -> Any:
        return self._last().rows.new_empty((self._ranks, self.capacity, hidden_size), dtype=dtype)

    def combine(self, payload: Any, runtime_max_tokens_per_rank: int, payload_in_workspace: bool = False) -> Any:
        d, self._dispatched = self._last(), None
        return self._moe.combine(d, payload.flatten(0, 1))

    def _last(self) -> Any:
        if self._dispatched is None:
            raise PeerwarpError("no dispatch that is to be combined")
        return self._dispatched


@contextmanager
def _swapped(module: Any, **others: Any) -> Iterator[None]:
    """Names of a module that are others within."""
    before = {name: getattr(module, name) for name in others}
    vars(module).update(others)
    try:
        yield
    finally:
        vars(module).update(before)


def make_dispatcher(
    original: Callable[..., None],
    self: Any,
    group: Any,
    router_topk: int,
    num_experts: int | None = None,
    num_local_experts: int | None = None,
    hidden_size: int | None = None,
    *others: Any,
    **named: Any,
) -> None:
    """`FlashinferDispatcher.__init__`, with our `MoeAlltoAll` in place of flashinfer's."""
    import sglang.srt.layers.moe.token_dispatcher.flashinfer as module

    kind = getattr(module.get_flashinfer_a2a_dispatch_type(), "name", None)
    if kind != "BF16":
        raise InvalidArgument("flashinfer's dispatch type", kind, "BF16, with PEERWARP_SGLANG=1")

    def ours(**sizes: Any) -> MoeAlltoAll:
        return MoeAlltoAll(self, group, hidden_size or 0, **sizes)

    with _swapped(module, MoeAlltoAll=ours, moe_a2a_get_workspace_size_per_rank=lambda **sizes: 0):
        original(self, group, router_topk, num_experts, num_local_experts, hidden_size, *others, **named)


def dispatch(original: Callable[..., Any], self: Any, *given: Any, **named: Any) -> Any:
    """`FlashinferDispatcher.dispatch`, whose `combine` then counts with as many tokens as there is room for."""
    found = original(self, *given, **named)
    active = getattr(self, "active_moe_a2a", None)
    if isinstance(active, MoeAlltoAll):
        self.runtime_max_tokens_per_rank = active.capacity
    return found


def register() -> None:
    """The entry point."""
    if not is_on(VARIABLE):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{DISPATCHER}.__init__", make_dispatcher, HookType.AROUND)
    HookRegistry.register(f"{DISPATCHER}.dispatch", dispatch, HookType.AROUND)
