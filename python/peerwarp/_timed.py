"""A rank of `python -m peerwarp bench`: Peerwarp as one of the libraries that scripts of baselines time.

It is imported by a script in the folder of those scripts, which has `timing` and `baselines`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import baselines  # type: ignore[import-not-found]
import timing  # type: ignore[import-not-found]
import torch

import peerwarp


class Peerwarp:
    NAME = "Peerwarp"
    ABOUT = "rank-major rows, from PyTorch"
    GRAPH = True

    world: ClassVar[Any] = None
    #: Of each case names of kernels, and whether they were tuned.
    kernels: ClassVar[list[tuple[str, str]]] = []

    @staticmethod
    def version() -> str:
        return peerwarp.__version__

    @classmethod
    def load(cls) -> type[Peerwarp]:
        """Makes the world, whose memory is not that of a case."""
        cls.world = peerwarp.World.from_torch()
        return cls

    def __init__(self, case: Any) -> None:
        self.case = case
        sizes = {"hidden": case.hidden, "experts": case.experts, "topk": case.topk, "max_tokens": case.tokens}
        self.op: Any = peerwarp.MoeAllToAll(Peerwarp.world, **sizes, dtype=case.asked["dtype"])
        Peerwarp.kernels += self.op.kernels
        self.y = case.random((case.ranks * case.tokens, case.hidden), case.combined)
        self.out = torch.empty((case.n, case.hidden), dtype=case.combined, device="cuda")

    def dispatch(self) -> None:
        case = self.case
        self.d = self.op.dispatch(case.x, case.ids, case.weights, scales=case.scales)

    def combine(self) -> None:
        self.op.combine(self.d, self.y, out=self.out)

    def check(self) -> None:
        self.dispatch()
        own, self.y = self.y, self.case.made_of_tokens(self.d.rows, self.d.ids, self.d.sent_weights)
        self.combine()
        self.y = own
        self.case.compare(self.out)
        torch.cuda.synchronize()
        assert Peerwarp.world is not None
        Peerwarp.world.check()

    def close(self) -> None:
        self.op = self.d = None


def main() -> None:
    _, request, reply = sys.argv
    only = json.loads(Path(request).read_text(encoding="utf-8")).get("only")
    libraries = [(Peerwarp.NAME, Peerwarp.load)]
    libraries += [(shown, baselines.of_module(module, name)) for module, name, shown in baselines.BASELINES]
    if only:
        libraries = [one for one in libraries if any(one[0].lower().startswith(name.strip().lower()) for name in only)]
    timing.main(libraries, ["dispatch", "combine"], "round_trip", baselines.Case)
    path = Path(reply)
    if path.is_file() and Peerwarp.kernels and not int(os.environ["RANK"]):
        found = json.loads(path.read_text(encoding="utf-8"))
        found["baselines"][0]["kernels"] = Peerwarp.kernels
        path.write_text(json.dumps(found), encoding="utf-8")
