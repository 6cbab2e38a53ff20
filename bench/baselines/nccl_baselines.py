"""Baselines on PyTorch and NCCL alone."""

import torch
import torch.distributed as dist


def version():
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return f"PyTorch {torch.__version__}, NCCL {nccl}"


def exchange(received, sent, received_rows, sent_rows):
    dist.all_to_all_single(received, sent, received_rows, sent_rows)


class Sorted:
    """Dispatch and combine as they are written without a library: entries are sorted by expert, counts are exchanged and
    read by the host, rows go by all_to_all_single, once for each expert, and are sorted by expert again where they
    arrive. The host waits for the counts, so that its work is part of the time."""

    NAME = "torch sort + NCCL all_to_all_single"
    ABOUT = "sort, exchange of counts with a wait of the host, a row for each expert; not a graph"
    GRAPH = False

    @staticmethod
    def version():
        return version()

    def __init__(self, case):
        self.case = case
        ranks, experts = case.ranks, case.experts
        per_rank = [experts // ranks + (rank < experts % ranks) for rank in range(ranks)]
        # First expert of each rank, and after the last one the end.
        first = [sum(per_rank[:rank]) for rank in range(ranks)] + [experts]
        self.bounds = torch.tensor(first, device="cuda")
        self.experts_of = per_rank
        self.local = per_rank[case.rank]
        # Masked entries get an expert after the last one, and are left out.
        ids = case.ids.reshape(-1).long()
        self.ids = torch.where((ids < 0) | (ids >= experts), experts, ids)
        self.rows_in = case.rows_by_entry
        hidden = case.hidden
        self.y = case.random((self.rows_in, hidden), case.combined)

    def dispatch(self):
        case, experts = self.case, self.case.experts
        expert, self.order = torch.sort(self.ids, stable=True)
        counts = torch.bincount(expert, minlength=experts + 1)[:experts]
        theirs = torch.empty(case.ranks * self.local, dtype=counts.dtype, device="cuda")
        dist.all_to_all_single(theirs, counts, [self.local] * case.ranks, self.experts_of)
        theirs = theirs.view(case.ranks, self.local)
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])[self.bounds]
        both = torch.cat([ends[1:] - ends[:-1], theirs.sum(1)]).tolist()
        self.sent, self.received = both[: case.ranks], both[case.ranks :]
        self.order = self.order[: sum(self.sent)]
        token = torch.div(self.order, case.topk, rounding_mode="floor")
        rows = self.exchanged(case.x.view(torch.uint8)[token])
        if case.scales is not None:
            self.scales = self.exchanged(case.scales[token])
        self.per_expert = theirs.sum(0)
        # By source, then expert: to by expert, then source.
        arrived = torch.arange(self.local, device="cuda").repeat(case.ranks)
        arrived = torch.repeat_interleave(arrived, theirs.reshape(-1), output_size=sum(self.received))
        self.grouped = torch.argsort(arrived, stable=True)
        self.rows = rows[self.grouped]

    def exchanged(self, rows):
        # Bytes as they are: not all that is done here is there for 8-bit floats.
        rows = rows.contiguous().view(torch.uint8)
        got = rows.new_empty((sum(self.received), rows.shape[1]))
        exchange(got, rows, self.received, self.sent)
        return got

    def combine(self):
        case = self.case
        y = torch.empty_like(self.y)
        y[self.grouped] = self.y
        back = y.new_empty((sum(self.sent), case.hidden))
        exchange(back, y, self.sent, self.received)
        entries = back.new_zeros((self.ids.numel(), case.hidden))
        entries[self.order] = back
        weighted = entries.view(-1, case.topk, case.hidden).float() * case.weights.unsqueeze(-1)
        self.out = weighted.sum(1).to(case.combined)

    def check(self):
        case, own = self.case, self.y
        self.dispatch()
        local = torch.repeat_interleave(torch.arange(self.local, device="cuda"), self.per_expert)
        self.y = case.made_of_entries(self.rows.view(case.x.dtype), case.first_expert + local)
        self.combine()
        self.y = own
        case.compare(self.out)


class GatherScatter:
    """All ranks get all tokens, with ids and weights, and sums go back."""

    NAME = "NCCL all_gather + reduce_scatter"
    ABOUT = "every token, its ids and weights to all ranks, and sums back: what engines do unless they are told otherwise"
    GRAPH = True

    @staticmethod
    def version():
        return version()

    def __init__(self, case):
        self.case = case
        sent = [case.x, case.ids.masked_fill(case.ids >= case.experts, -1), case.weights]
        if case.scales is not None:
            sent.append(case.scales)
        # As many tokens of each rank: those that are not there go nowhere.
        fills = [0, -1, 0, 0]
        self.sent = [self.padded(one, fill) for one, fill in zip(sent, fills)]
        self.got = [one.new_empty((case.ranks * case.tokens, one.shape[1])) for one in self.sent]
        self.y = case.random((case.ranks * case.tokens, case.hidden), case.combined)
        self.out = torch.empty((case.tokens, case.hidden), dtype=case.combined, device="cuda")

    def padded(self, rows, fill):
        # Bytes as they are: NCCL does not know all types.
        rows = rows.view(torch.uint8) if rows.element_size() == 1 else rows
        return torch.cat([rows, rows.new_full((self.case.tokens - len(rows), rows.shape[1]), fill)])

    def dispatch(self):
        # At once, as engines do.
        with dist._coalescing_manager(device=self.y.device):
            for got, sent in zip(self.got, self.sent):
                dist.all_gather_into_tensor(got, sent)

    def combine(self):
        dist.reduce_scatter_tensor(self.out, self.y)

    def check(self):
        case, own = self.case, self.y
        self.dispatch()
        rows, ids, weights = self.got[:3]
        self.y = case.made_of_tokens(rows.view(case.x.dtype), ids, weights)
        self.combine()
        self.y = own
        case.compare(self.out)


class Plain:
    """The bytes of our dispatch and combine, by all_to_all_single with sizes known beforehand: no routing,
    no grouping, no sums."""

    NAME = "NCCL all_to_all_single"
    ABOUT = "our bytes between all ranks, sizes known beforehand; nothing is routed, grouped or summed"
    GRAPH = True

    @staticmethod
    def version():
        return version()

    def __init__(self, case):
        self.sent = case.rows[case.rank]
        self.received = [row[case.rank] for row in case.rows]
        row = case.x.shape[1] * case.x.element_size() + (0 if case.scales is None else case.scales.shape[1] * 4)
        back = case.hidden * 2
        self.x = case.random((sum(self.sent), row), torch.uint8)
        self.rows = torch.empty((sum(self.received), row), dtype=torch.uint8, device="cuda")
        self.y = case.random((sum(self.received), back), torch.uint8)
        self.out = torch.empty((sum(self.sent), back), dtype=torch.uint8, device="cuda")

    def dispatch(self):
        exchange(self.rows, self.x, self.received, self.sent)

    def combine(self):
        exchange(self.out, self.y, self.sent, self.received)
