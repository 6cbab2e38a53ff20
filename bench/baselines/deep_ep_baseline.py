"""DeepEP: low-latency kernels for few tokens, normal ones for many."""

from importlib import metadata

import deep_ep
import torch
import torch.distributed as dist

# Beyond this many tokens a rank the normal kernels are used.
FEW = 256
# Memory of the normal kernels that peers write to.
NVLINK_BYTES = 1 << 30


class DeepEp:
    NAME = "DeepEP"
    ABOUT = f"low-latency kernels up to {FEW} tokens a rank, which cast to fp8 themselves; normal ones beyond"
    GRAPH = True

    @staticmethod
    def version():
        return metadata.version("deep_ep")

    def __init__(self, case):
        if case.combined != torch.bfloat16:
            raise ValueError("DeepEP combines in bf16 only")
        if case.experts % case.ranks:
            raise ValueError("DeepEP needs as many experts on every rank")
        self.case, self.few = case, case.tokens <= FEW
        self.ids = case.ids.to(getattr(deep_ep, "topk_idx_t", torch.int64))
        group = dist.group.WORLD
        if self.few:
            size = deep_ep.Buffer.get_low_latency_rdma_size_hint(case.tokens, case.hidden, case.ranks, case.experts)
            self.buffer = deep_ep.Buffer(
                group,
                num_rdma_bytes=size,
                low_latency_mode=True,
                num_qps_per_rank=case.experts // case.ranks,
                allow_nvlink_for_low_latency_mode=True,
            )
            self.x = case.random((case.n, case.hidden), torch.bfloat16)
            rows = (case.experts // case.ranks, case.tokens * case.ranks, case.hidden)
        else:
            self.buffer = deep_ep.Buffer(group, num_nvl_bytes=NVLINK_BYTES)
            self.x = case.x if case.scales is None else (case.x, case.scales)
            rows = (case.tokens * case.ranks, case.hidden)
        self.y = case.random(rows, torch.bfloat16)

    def dispatch(self):
        case = self.case
        if self.few:
            fp8 = case.scales is not None
            found = self.buffer.low_latency_dispatch(self.x, self.ids, case.tokens, case.experts, use_fp8=fp8)
            self.rows, self.handle = found[0], found[2]
            return
        layout = self.buffer.get_dispatch_layout(self.ids, case.experts)
        per_rank, _, per_expert, in_rank, _ = layout
        found = self.buffer.dispatch(
            self.x,
            topk_idx=self.ids,
            topk_weights=case.weights,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            # As many rows as there can be: the host need not wait for how many there are.
            num_worst_tokens=case.tokens * case.ranks,
        )
        self.rows, self.received_ids, self.received_weights, self.handle = found[0], found[1], found[2], found[4]

    def combine(self):
        if self.few:
            found = self.buffer.low_latency_combine(self.y, self.ids, self.case.weights, self.handle)
        else:
            found = self.buffer.combine(self.y, self.handle, topk_weights=self.received_weights)
        self.out = found[0]

    def check(self):
        case, own = self.case, self.y
        self.dispatch()
        rows = self.unscaled()
        if self.few:
            local = torch.arange(case.first_expert, case.first_expert + case.own_experts, device="cuda")
            self.y = case.made_of_entries(rows, local.unsqueeze(1))
        else:
            # Its ids are among this rank's experts, -1 for those of others.
            ids = self.received_ids.masked_fill(self.received_ids < 0, -1 - case.first_expert) + case.first_expert
            self.y = case.made_of_tokens(rows, ids, self.received_weights)
        self.combine()
        self.y = own
        case.compare(self.out, self.x if self.few else case.x)

    def unscaled(self):
        """Rows that came, times their scales if they have some."""
        if not isinstance(self.rows, tuple):
            return self.rows
        rows, scales = self.rows
        wide = scales.repeat_interleave(128, dim=-1)[..., : rows.shape[-1]]
        return rows.float() * wide

    def close(self):
        self.buffer = None
