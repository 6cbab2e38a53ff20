"""pplx-kernels: its kernels for one node."""

from importlib import metadata

import torch
import torch.distributed as dist
from pplx_kernels import AllToAll


class Pplx:
    NAME = "pplx-kernels"
    ABOUT = "intranode kernels: a row for each expert, copied where it arrives"
    GRAPH = True
    registered = False

    @staticmethod
    def version():
        return metadata.version("pplx-kernels")

    def __init__(self, case):
        if case.experts % case.ranks:
            raise ValueError("pplx-kernels needs as many experts on every rank")
        if bool((case.ids < 0).any()):
            raise ValueError("pplx-kernels has no masked entries")
        if not Pplx.registered:
            # The name under which it looks its group up.
            torch._C._distributed_c10d._register_process_group("default", dist.group.WORLD)
            Pplx.registered = True
        local = case.experts // case.ranks
        scales = 0 if case.scales is None else case.scales.shape[1]
        self.case = case
        self.all_to_all = AllToAll.intranode(
            max_num_tokens=case.tokens,
            num_experts=case.experts,
            experts_per_token=case.topk,
            rank=case.rank,
            world_size=case.ranks,
            dp_size=1,
            hidden_dim=case.hidden,
            hidden_dim_bytes=case.hidden * case.x.element_size(),
            hidden_dim_scale_bytes=scales * 4,
        )
        rows = (local, case.tokens * case.ranks)
        self.counts = torch.empty(local, dtype=torch.int32, device="cuda")
        self.rows = torch.empty((*rows, case.hidden), dtype=case.x.dtype, device="cuda")
        self.row_scales = torch.empty((*rows, scales), dtype=torch.float32, device="cuda") if scales else None
        self.ids = case.ids.to(torch.uint32)
        self.bound = torch.tensor([case.n], dtype=torch.uint32, device="cuda")
        self.y = case.random((*rows, case.hidden), case.combined)
        self.out = torch.empty((case.tokens, case.hidden), dtype=case.combined, device="cuda")

    def dispatch(self):
        self.all_to_all.dispatch(
            out_expert_num_tokens=self.counts,
            out_expert_x=self.rows,
            out_expert_x_scale=self.row_scales,
            dp_x=self.case.x,
            dp_x_scale=self.case.scales,
            indices=self.ids,
            bound_m=self.bound,
        )

    def combine(self):
        self.all_to_all.combine(
            out_tokens=self.out, indices=self.ids, weights=self.case.weights, expert_y=self.y, bound_m=self.bound
        )

    def check(self):
        # Beyond 132 tokens a rank it was seen to be wrong.
        case, own = self.case, self.y
        self.dispatch()
        local = torch.arange(case.first_expert, case.first_expert + case.own_experts, device="cuda")
        self.y = case.made_of_entries(self.rows, local.unsqueeze(1))
        self.combine()
        self.y = own
        case.compare(self.out)
