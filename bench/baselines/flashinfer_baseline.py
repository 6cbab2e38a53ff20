"""flashinfer: its one-sided all-to-all, by `flashinfer.moe_ep` where that is there (0.7.2 and newer)."""

from importlib import metadata

import torch
import torch.distributed as dist
from timing import Unsupported

from flashinfer.comm.mapping import Mapping
from flashinfer.comm.mnnvl import MnnvlConfig, TorchDistBackend
from flashinfer.comm.trtllm_moe_alltoall import MoeAlltoAll

try:
    from flashinfer.fused_moe import QuantFormat
    from flashinfer.moe_ep import BootstrapConfig, MoEEpCommParams, NVLinkOneSidedConfig, create_communication
except ImportError:
    create_communication = None

# What it writes to ids of rows that did not come, and of entries of other ranks' experts.
EMPTY_ID = -1


class Ranks(TorchDistBackend):
    """All ranks, to exchange handles of memory. A group of its own for each workspace would be one of NCCL, whose memory on the
    GPU is not what dispatch and combine need."""

    def Split(self, color, key):
        return self


class Older:
    """Its class of before, with the methods of the newer one that are called here."""

    def __init__(self, case):
        ranks = case.ranks
        mapping = Mapping(world_size=ranks, rank=case.rank, gpus_per_node=ranks, tp_size=ranks, moe_ep_size=ranks)
        self.case = case
        self.all_to_all = MoeAlltoAll(
            mapping,
            max_num_tokens=case.tokens,
            top_k=case.topk,
            num_experts=case.experts,
            hidden_size=case.hidden,
            mnnvl_config=MnnvlConfig(comm_backend=Ranks()),
        )

    def dispatch(self, rows, ids, weights, scales):
        payloads = [rows, ids, weights] if scales is None else [rows, ids, weights, scales]
        asked = {"invalid_token_expert_id": EMPTY_ID, "expert_id_payload_index": 1}
        got = self.all_to_all.dispatch(ids, payloads, self.case.tokens, **asked)
        return [one.flatten(0, 1) for one in got[:3]]

    def buffer(self):
        case = self.case
        y = self.all_to_all.get_combine_payload_tensor_in_workspace(case.tokens, case.hidden, case.combined)
        return y.flatten(0, 1)

    def combine(self, y, out):
        case = self.case
        return self.all_to_all.combine(y.view(case.ranks, case.tokens, -1), case.tokens, payload_in_workspace=True)

    def destroy(self):
        self.all_to_all = None


class Newer:
    def __init__(self, case):
        bootstrap = BootstrapConfig(world_size=case.ranks, rank=case.rank, process_group=dist.group.WORLD)
        params = MoEEpCommParams(
            num_experts=case.experts,
            top_k=case.topk,
            max_tokens_per_rank=case.tokens,
            hidden_size=case.hidden,
            dtype=case.combined,
            dispatch_format=None if case.scales is None else QuantFormat.DeepSeekFp8,
            invalid_expert_id=EMPTY_ID,
        )
        self.case = case
        self.communication = create_communication(bootstrap, params, NVLinkOneSidedConfig(comm_backend=Ranks()))

    def dispatch(self, rows, ids, weights, scales):
        got = self.communication.dispatch(rows, ids, weights, hidden_states_scale=scales)
        return [got.hidden_states, got.topk_ids, got.topk_weights]

    def buffer(self):
        return self.communication.get_combine_input_buffer(self.case.combined)

    def combine(self, y, out):
        return self.communication.combine(y, output=out)

    def destroy(self):
        self.communication.destroy()
        self.communication = None


class FlashInfer:
    NAME = "flashinfer, one-sided"
    ABOUT = (
        "a token goes once to a rank; ids of rows that did not come are overwritten, rows are not grouped by expert; "
        "combine finds its rows in the workspace"
    )
    GRAPH = True
    SLOW = " (compiles itself before it is used first: minutes)"

    @staticmethod
    def version():
        return metadata.version("flashinfer-python")

    def __init__(self, case):
        if bool(((case.ids < 0) | (case.ids >= case.experts)).any()):
            raise Unsupported("masked entries: they are sent as if they were an expert's")
        self.case = case
        self.ids = case.ids.to(torch.int32)
        self.out = torch.empty((case.n, case.hidden), dtype=case.combined, device="cuda")
        self.library = Older(case) if create_communication is None else Newer(case)
        # Rows that are combined are those that were written last.
        self.dispatch()
        self.y.copy_(case.random(self.y.shape, case.combined))
        self.combine()

    def dispatch(self):
        case = self.case
        self.got = self.library.dispatch(case.x, self.ids, case.weights, case.scales)
        self.y = self.library.buffer()

    def combine(self):
        self.out = self.library.combine(self.y, self.out)

    def check(self):
        case = self.case
        self.dispatch()
        rows, ids, weights = self.got
        self.y.copy_(case.made_of_tokens(rows.view(case.x.dtype), ids, weights))
        self.combine()
        case.compare(self.out)

    def close(self):
        self.library.destroy()
        self.got = self.y = self.out = None
        # It keeps workspaces for the process.
        MoeAlltoAll._WORKSPACE_CACHE.clear()
