"""flashinfer: the one-sided all-to-all that it has from TensorRT-LLM."""

from importlib import metadata

import torch
from flashinfer.comm.mapping import Mapping
from flashinfer.comm.mnnvl import MnnvlConfig, TorchDistBackend
from flashinfer.comm.trtllm_moe_alltoall import MoeAlltoAll


class FlashInfer:
    NAME = "flashinfer moe_a2a"
    ABOUT = "a token goes once to a rank; rows are not grouped by expert; combine finds its rows in the workspace"
    GRAPH = True

    @staticmethod
    def version():
        return metadata.version("flashinfer-python")

    def __init__(self, case):
        if case.experts % case.ranks:
            raise ValueError("flashinfer needs as many experts on every rank")
        mapping = Mapping(
            world_size=case.ranks,
            rank=case.rank,
            gpus_per_node=case.ranks,
            tp_size=case.ranks,
            moe_ep_size=case.ranks,
        )
        self.case = case
        self.all_to_all = MoeAlltoAll(
            mapping,
            max_num_tokens=case.tokens,
            top_k=case.topk,
            num_experts=case.experts,
            hidden_size=case.hidden,
            mnnvl_config=MnnvlConfig(comm_backend=TorchDistBackend()),
        )
        self.ids = case.ids.to(torch.int32)
        # A grouped GEMM needs ids and weights of the tokens that arrive.
        self.payloads = [case.x, self.ids, case.weights]
        if case.scales is not None:
            self.payloads.insert(1, case.scales)

    def dispatch(self):
        self.all_to_all.dispatch(self.ids, self.payloads, self.case.tokens)
        case = self.case
        self.y = self.all_to_all.get_combine_payload_tensor_in_workspace(case.tokens, case.hidden, case.combined)

    def combine(self):
        self.out = self.all_to_all.combine(self.y, self.case.tokens, payload_in_workspace=True)
