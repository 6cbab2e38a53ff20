"""For flashinfer-python 0.7.2.post1 (`flashinfer.moe_ep`), with which it ran on two H100s: rows of bf16, fp16 and `DeepSeekFp8`.

Importing this module registers the communication backend `peerwarp` of flashinfer's MoE layers:

    >>> import peerwarp.flashinfer
    >>> communication = flashinfer.moe_ep.create_communication(bootstrap, params, "peerwarp")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from flashinfer.moe_ep import MoEEpCommParams, MoEEpCommunication, MoEEpDispatchResult, register_communication

from peerwarp import _core
from peerwarp._adapters import operation, rows_of
from peerwarp.errors import InvalidArgument, PeerwarpError

if TYPE_CHECKING:
    from flashinfer.moe_ep import BootstrapConfig
    from torch import Tensor

    from peerwarp._device import DispatchedTensors

#: Our types by the names of flashinfer's formats.
FORMATS = {
    "BF16": "bf16",
    "FP16": "fp16",
    "FP8PerTensor": "fp8-tensor",
    "DeepSeekFp8": "fp8",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
}


def _rows(params: MoEEpCommParams) -> str:
    """Our name of what is dispatched."""
    if params.dispatch_format is None:
        found, given = rows_of(params.token_dtype), str(params.token_dtype)
    else:
        found, given = FORMATS.get(params.dispatch_format.name), params.dispatch_format.name
    if found is None:
        raise InvalidArgument("dispatch_format", given, f"{', '.join(FORMATS)}, or rows of bfloat16 or float16")
    combined = "torch.float16" if found == "fp16" else "torch.bfloat16"
    if str(params.token_dtype) != combined:
        raise InvalidArgument("dtype", params.token_dtype, f"{combined}, as which rows of {given} come back")
    return found


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    """Bytes that came, of the type that they were sent as."""
    return tensor if tensor.dtype == like.dtype else tensor.view(like.dtype)


@register_communication("peerwarp")
class Communication(MoEEpCommunication):
    """Rank-major dispatch and combine, as flashinfer's layers call them. Instances of one shape share memory."""

    def __init__(self, bootstrap: BootstrapConfig, params: MoEEpCommParams) -> None:
        super().__init__(bootstrap, params)
        self._moe: Any = operation(
            bootstrap.process_group,
            hidden=params.hidden_size,
            experts=params.num_experts,
            topk=params.top_k,
            max_tokens=params.max_tokens_per_rank,
            dtype=_rows(params),
            empty_id=params.invalid_expert_id,
        )
        self._dispatched: DispatchedTensors | None = None

    @classmethod
    def is_platform_supported(cls) -> bool:
        return _core.why_no_gpu() is None

    def dispatch(
        self,
        hidden_states: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor | None = None,
        *,
        hidden_states_scale: Tensor | None = None,
        max_tokens_per_rank: int | None = None,
        eplb_local_stats: Tensor | None = None,
    ) -> MoEEpDispatchResult:
        if eplb_local_stats is not None:
            raise InvalidArgument("eplb_local_stats", "a tensor", "None: statistics are not gathered")
        if self._dispatched is not None:
            raise PeerwarpError("dispatch before the combine of the dispatch before")
        ids = topk_ids if topk_ids.dtype == torch.int32 else topk_ids.to(torch.int32)
        weights = torch.ones(topk_ids.shape, device=topk_ids.device) if topk_weights is None else topk_weights.to(torch.float32)
        scales = hidden_states_scale
        d = self._moe.dispatch(hidden_states, ids, weights, scales=scales, max_tokens=max_tokens_per_rank)
        self._dispatched = d
        return MoEEpDispatchResult(
            hidden_states=_as(d.rows, hidden_states),
            topk_ids=d.ids,
            topk_weights=None if topk_weights is None else d.sent_weights,
            tokens_per_rank=d.capacity,
            hidden_states_scale=None if scales is None else _as(d.scales, scales),
        )

    def combine(self, expert_output: Tensor, *, output: Tensor | None = None) -> Tensor:
        d, self._dispatched = self._dispatched, None
        if d is None:
            raise PeerwarpError("combine without a dispatch before")
        rows = expert_output.flatten(0, 1) if expert_output.dim() == 3 else expert_output
        combined: Tensor = self._moe.combine(d, rows, out=output)
        return combined

    def destroy(self) -> None:
        self._moe = self._dispatched = None
