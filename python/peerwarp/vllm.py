"""Not run with vLLM yet: its signatures were compared with those of vLLM 0.33.0 (`FusedMoEPrepareAndFinalizeModular`).

A plugin of vLLM, by the entry point `vllm.general_plugins`. It does nothing unless `PEERWARP_VLLM=1`: then layers that would
all-gather their tokens and reduce-scatter the results (`--all2all-backend allgather_reducescatter`, the default) dispatch and
combine them with Peerwarp, where rows are bf16, fp16 or fp8 in blocks of 128, and all ranks are on one machine. Else, and for what
is not there yet (LoRA, other quantisations, experts that are not spread in order), vLLM's own code goes on as before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from peerwarp._adapters import is_on, operation, rows_of
from peerwarp.errors import PeerwarpError

if TYPE_CHECKING:
    from torch import Tensor

    from peerwarp._device import DispatchedTensors
    from peerwarp._moe import MoeAllToAll

VARIABLE = "PEERWARP_VLLM"
BLOCK = [128, 128]

logger = logging.getLogger("vllm.peerwarp")


def rows_for(quantized: Any, x: Tensor, deferred: bool) -> str | None:
    """Our name of what rows travel as; none where it is not for us. Where no row came there is anything, so that what is quantised
    after dispatch must not look at more than a row."""
    if quantized.quant_dtype is None:
        return rows_of(x.dtype)
    if str(quantized.quant_dtype) != "torch.float8_e4m3fn" or list(quantized.block_shape or ()) != BLOCK:
        return None
    plain = rows_of(x.dtype)
    # What was fp8 comes back as bf16.
    return plain if deferred else "fp8" if plain == "bf16" else None


def in_order(expert_map: Tensor | None, first: int, count: int) -> bool:
    """Whether a rank's experts are those that Peerwarp gives it."""
    if expert_map is None:
        return False
    own: list[int] = (expert_map >= 0).nonzero().flatten().tolist()
    return own == list(range(first, first + count))


def layers(own: type) -> type:
    """The class of layers that take Peerwarp where they can, and are `own` elsewhere."""
    import torch
    from vllm.config import get_current_vllm_config
    from vllm.distributed import get_ep_group
    from vllm.forward_context import get_forward_context
    from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
        TopKWeightAndReduceContiguous,
        TopKWeightAndReduceDelegate,
    )
    from vllm.model_executor.layers.fused_moe.utils import moe_kernel_quantize_input

    class PrepareAndFinalize(own):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._max_tokens = get_current_vllm_config().scheduler_config.max_num_batched_tokens
            #: By types of rows: the operation, or nothing where vLLM's own code is to go on.
            self._made: dict[str, MoeAllToAll | None] = {}
            #: The operation of a dispatch, and what it brought, until it is combined.
            self._under_way: tuple[MoeAllToAll, DispatchedTensors] | None = None

        def _operation(self, rows: str, hidden: int, experts: int, topk: int, expert_map: Tensor | None) -> MoeAllToAll | None:
            """Made with the first step, which all ranks take together and which is in no graph."""
            if rows not in self._made:
                group = get_ep_group()
                each, more = divmod(experts, group.world_size)
                first = group.rank_in_group * each + min(group.rank_in_group, more)
                sizes = {"hidden": hidden, "experts": experts, "topk": topk, "max_tokens": self._max_tokens}
                self._made[rows] = None
                try:
                    if in_order(expert_map, first, each + (group.rank_in_group < more)):
                        self._made[rows] = operation(group.cpu_group, **sizes, dtype=rows)
                    else:
                        logger.warning("experts are not spread in order: vLLM's own all-gather and reduce-scatter go on")
                except PeerwarpError as error:
                    # It is raised on all ranks.
                    logger.warning("vLLM's own all-gather and reduce-scatter go on: %s", error)
            return self._made[rows]

        def _most(self) -> int | None:
            """The most tokens of a rank in this step, if every rank of the group has tokens of its own."""
            metadata = get_forward_context().dp_metadata
            sizes = None if metadata is None else metadata.get_chunk_sizes_across_dp_rank()
            return max(sizes) if sizes is not None and len(sizes) == get_ep_group().world_size else None

        def prepare(
            self,
            a1: Tensor,
            topk_weights: Tensor,
            topk_ids: Tensor,
            num_experts: int,
            expert_map: Tensor | None,
            apply_router_weight_on_input: bool,
            quant_config: Any,
            defer_input_quant: bool = False,
        ) -> Any:
            rows, most = rows_for(quant_config, a1, defer_input_quant), self._most()
            moe = None
            if rows is not None and most is not None and most <= self._max_tokens and self._lora_context is None:
                moe = self._operation(rows, a1.shape[1], num_experts, topk_ids.shape[1], expert_map)
            self._under_way = None
            if moe is None:
                given = (a1, topk_weights, topk_ids, num_experts, expert_map, apply_router_weight_on_input)
                return super().prepare(*given, quant_config, defer_input_quant)
            if apply_router_weight_on_input:
                a1 = a1 * topk_weights.to(a1.dtype)
            scales = None
            if rows == "fp8":
                a1, scales = moe_kernel_quantize_input(
                    a1, quant_config.a1_scale, quant_config.quant_dtype, quant_config.per_act_token_quant, quant_config.block_shape
                )
            ids, weights = topk_ids.to(torch.int32), topk_weights.to(torch.float32)
            d = moe.dispatch(a1, ids, weights, scales=scales, max_tokens=most)
            self._under_way = moe, d
            # Experts look an id up in the map: one of another rank's experts is what they leave out.
            foreign = 0 if d.first_expert else num_experts - 1
            ids = d.ids.masked_fill(d.ids < 0, foreign)
            return d.rows, None if scales is None else d.scales, None, ids, d.sent_weights

        def allocate_fused_expert_output(self, shape: Any, dtype: Any, device: Any, weight_and_reduce_impl: Any) -> Tensor | None:
            if self._under_way is not None:
                return None
            found: Tensor | None = super().allocate_fused_expert_output(shape, dtype, device, weight_and_reduce_impl)
            return found

        def finalize(
            self,
            output: Tensor,
            fused_expert_output: Tensor,
            topk_weights: Tensor,
            topk_ids: Tensor,
            apply_router_weight_on_input: bool,
            weight_and_reduce_impl: Any,
        ) -> None:
            under_way, self._under_way = self._under_way, None
            if under_way is None:
                given = (output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input)
                return super().finalize(*given, weight_and_reduce_impl)
            if isinstance(weight_and_reduce_impl, TopKWeightAndReduceDelegate):
                weight_and_reduce_impl = TopKWeightAndReduceContiguous()
            y = weight_and_reduce_impl.apply(
                output=None,
                fused_expert_output=fused_expert_output,
                topk_weights=topk_weights,
                topk_ids=topk_ids,
                apply_router_weight_on_input=apply_router_weight_on_input,
            )
            moe, d = under_way
            moe.combine(d, y, out=output)
            return None

    return PrepareAndFinalize


def register() -> None:
    """The entry point."""
    if not is_on(VARIABLE):
        return
    from vllm.model_executor.layers.fused_moe import all2all_utils
    from vllm.model_executor.layers.fused_moe.prepare_finalize.naive_dp_ep import MoEPrepareAndFinalizeNaiveDPEPModular

    original = all2all_utils.make_moe_prepare_and_finalize_naive_dp_ep
    made: list[type] = []

    def make(use_monolithic: bool, is_sequence_parallel: bool = False, num_dispatchers: int = 1) -> Any:
        if use_monolithic:
            return original(use_monolithic, is_sequence_parallel, num_dispatchers)
        if not made:
            made.append(layers(MoEPrepareAndFinalizeNaiveDPEPModular))
        return made[0](is_sequence_parallel, num_dispatchers)

    all2all_utils.make_moe_prepare_and_finalize_naive_dp_ep = make
