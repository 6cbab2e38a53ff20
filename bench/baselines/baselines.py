"""Times other libraries' MoE dispatch and combine. `peerwarp bench --compare` runs it, as timing.py says."""

import importlib

import torch

import timing

# Module and class of each baseline, and its name where it cannot be imported.
BASELINES = [
    ("nccl_baselines", "Sorted", "torch sort + NCCL all_to_all_single"),
    ("nccl_baselines", "Plain", "NCCL all_to_all_single"),
    ("nccl_baselines", "GatherScatter", "NCCL all_gather + reduce_scatter"),
    ("deep_ep_baseline", "DeepEp", "DeepEP"),
    ("pplx_baseline", "Pplx", "pplx-kernels"),
    ("flashinfer_baseline", "FlashInfer", "flashinfer moe_a2a"),
]

DTYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "fp8": (torch.float8_e4m3fn, torch.bfloat16),
}
SCALE_BLOCK = 128


class Case(timing.Case):
    """One problem, as this rank sees it."""

    def __init__(self, asked, rank, seed):
        super().__init__(asked, rank, seed)
        self.ranks = asked["ranks"]
        self.hidden, self.experts, self.topk = asked["hidden"], asked["experts"], asked["topk"]
        # Tokens of a rank at most, and of this one.
        self.tokens = asked["tokens"]
        ids = asked["ids"][rank]
        self.n = len(ids) // self.topk
        self.ids = torch.tensor(ids, dtype=torch.int32, device="cuda").view(self.n, self.topk)
        weights = torch.tensor(asked["weights"][rank], dtype=torch.float32, device="cuda")
        self.weights = weights.view(self.n, self.topk)
        # Rows that our dispatch sends, [from][to].
        self.rows = asked["rows"]
        self.rows_by_entry = rows_by_entry(asked, rank)
        dtype, self.combined = DTYPES[asked["dtype"]]
        self.x = self.random((self.n, self.hidden), self.combined).to(dtype)
        self.scales = None
        if asked["dtype"] == "fp8":
            blocks = -(-self.hidden // SCALE_BLOCK)
            self.scales = torch.ones((self.n, blocks), dtype=torch.float32, device="cuda")
        few, larger = divmod(self.experts, self.ranks)
        self.first_expert = rank * few + min(rank, larger)
        self.own_experts = few + (rank < larger)

    def factors(self, ids):
        """What stand-ins for experts multiply rows by: numbers that every type of rows has."""
        return (1 + ids % 4).float()

    def made_of_tokens(self, rows, ids, weights):
        """What this rank's experts make of rows that came once for all of them: weighted and summed. Ids are among all experts."""
        own = (ids >= self.first_expert) & (ids < self.first_expert + self.own_experts)
        factor = (self.factors(ids) * weights).masked_fill(~own, 0).sum(1, keepdim=True)
        # Where no row came there is anything.
        made = (rows.float() * factor).masked_fill(~own.any(1, keepdim=True), 0)
        return made.to(self.combined)

    def made_of_entries(self, rows, experts):
        """What each row's expert makes of it."""
        return (rows.float() * self.factors(experts).unsqueeze(-1)).to(self.combined)

    def compare(self, out, x=None):
        """Raises unless these are the combined rows of stand-ins for experts."""
        there = (self.ids >= 0) & (self.ids < self.experts)
        factor = (self.factors(self.ids) * self.weights).masked_fill(~there, 0).sum(1, keepdim=True)
        wanted = (self.x if x is None else x).float() * factor
        torch.testing.assert_close(out[: self.n].float(), wanted, rtol=3e-2, atol=3e-2)


def rows_by_entry(asked, rank):
    """Entries of all ranks that name one of this rank's experts."""
    ranks, experts = asked["ranks"], asked["experts"]
    few, larger = divmod(experts, ranks)
    first = rank * few + min(rank, larger)
    end = first + few + (rank < larger)
    return sum(first <= expert < end for ids in asked["ids"] for expert in ids)


def of_module(module, name):
    """Loads a class when it is needed: libraries may not be installed."""
    return lambda: getattr(importlib.import_module(module), name)


def main():
    baselines = [(shown, of_module(module, name)) for module, name, shown in BASELINES]
    timing.main(baselines, ["dispatch", "combine"], "round_trip", Case)


if __name__ == "__main__":
    main()
