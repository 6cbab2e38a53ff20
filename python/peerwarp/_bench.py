"""`python -m peerwarp bench`: times of dispatch and combine in PyTorch, of Peerwarp and of other installed libraries.

The scripts of `peerwarp bench --compare` compare results first, then time each library with one process a rank: in CUDA graphs,
launched one by one, and on the host.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from peerwarp import _core
from peerwarp.errors import InvalidArgument, MissingPackage, PeerwarpError

#: Of requests: as timing.py has it.
SCHEMA = 2
#: What lines of the scripts begin with that say what is going on.
PROGRESS = "progress: "
#: Lines of their errors that are shown if they fail.
LINES = 12
SCRIPT = "from peerwarp._timed import main\n\nmain()\n"


def models() -> dict[str, dict[str, int]]:
    """Shapes of the models that the program knows."""
    _, found, _ = _core.command(["list", "models", "--json"])
    return {one["name"]: {key: one[key] for key in ("hidden", "experts", "topk")} for one in json.loads(found)}


def problem(shape: dict[str, int], tokens: int, ranks: int, dtype: str, seed: int) -> dict[str, Any]:
    """One case, as baselines are told: ids are drawn uniformly, without repetition."""
    drawn = random.Random(seed)
    experts, topk = shape["experts"], shape["topk"]
    ids = [[drawn.sample(range(experts), topk) for _ in range(tokens)] for _ in range(ranks)]
    weights = [[drawn.random() for _ in range(tokens * topk)] for _ in range(ranks)]
    few, more = divmod(experts, ranks)
    owner = [rank for rank in range(ranks) for _ in range(few + (rank < more))]
    rows = [[sum(any(owner[one] == to for one in token) for token in of) for to in range(ranks)] for of in ids]
    flat = [[one for token in of for one in token] for of in ids]
    return {"ranks": ranks, **shape, "tokens": tokens, "dtype": dtype, "ids": flat, "weights": weights, "rows": rows}


def run(request: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Runs the scripts, says what they are doing, and returns what they found."""
    with tempfile.TemporaryDirectory(prefix="peerwarp-bench-") as name:
        folder = Path(name)
        for script, text in _core.baseline_scripts():
            (folder / script).write_text(text, encoding="utf-8")
        script, asked, reply = folder / "bench.py", folder / "request.json", folder / "reply.json"
        script.write_text(SCRIPT, encoding="utf-8")
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        last: deque[str] = deque(maxlen=LINES)
        paths = [str(script), str(asked), str(reply)]
        # Python imports modules of the current folder first, which another user may have filled.
        with subprocess.Popen(
            [*command, *paths],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as running:
            assert running.stderr is not None
            for line in running.stderr:
                if line.startswith(PROGRESS):
                    print(line.removeprefix(PROGRESS), end="", file=sys.stderr, flush=True)
                elif line.strip():
                    last.append(line)
        if not reply.is_file():
            raise PeerwarpError("the scripts failed:\n" + "".join(last))
        found: list[dict[str, Any]] = json.loads(reply.read_text(encoding="utf-8"))["baselines"]
        return found


def median(times: list[list[float]]) -> float:
    """Of the slowest rank's times."""
    return statistics.median(max(ranks) for ranks in zip(*times, strict=True))


def number(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"


def megabytes(held: int | None) -> str:
    return "-" if held is None else f"{held / 2**20:.0f} MiB"


COLUMNS = ("dispatch", "combine", "round", "of 10", "eager round", "host", "memory")


def row(found: dict[str, Any], case: int) -> list[str]:
    """A library's times of a case."""
    us: dict[tuple[str, bool, bool], float] = {}
    for time in found["times"]:
        if time["case"] == case:
            us[time["metric"], time["graph"], time["rounds"] > 1] = median(time["times_us"])
    graphs = [("dispatch", True, False), ("combine", True, False), ("round_trip", True, False), ("round_trip", True, True)]
    times = [number(us.get(key)) for key in [*graphs, ("round_trip", False, False)]]
    later = [dict(enumerate(found[key])).get(case) for key in ("host_us", "memory_bytes")]
    return [*times, number(later[0]), megabytes(later[1])]


def text(request: dict[str, Any], baselines: list[dict[str, Any]]) -> str:
    """What was found, for people."""
    lines: list[str] = []
    for case, asked in enumerate(request["cases"]):
        shape = "hidden {hidden}, {experts} experts, topk {topk}, {tokens} tokens a rank, {dtype}, {ranks} ranks".format(**asked)
        lines += ["", shape, f"  {'us':32}" + "".join(f"{name:>13}" for name in COLUMNS)]
        for found in baselines:
            if any(time["case"] == case for time in found["times"]):
                lines.append(f"  {found['name']:32}" + "".join(f"{one:>13}" for one in row(found, case)))
    lines += [""]
    for found in baselines:
        for kernels, origin in found.get("kernels", []):
            lines.append(f"kernels, {origin}: {kernels}")
        if found["absent"]:
            lines.append(f"absent: {found['name']}: {found['absent']}")
        elif not found["checked"]:
            lines.append(f"not compared: {found['name']}: whether its results are right was not looked at")
    lines += [
        "Medians of the slowest rank. dispatch, combine, round and one round of ten in a row: in CUDA graphs. eager round:",
        "launched one by one. host: what a round takes the host then, of 20 in a row. memory: of a rank's GPU, rows included;",
        "none where a library before it has given back more meanwhile. With its first problem, what it keeps for all of them.",
    ]
    return "\n".join(lines[1:])


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m peerwarp bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="deepseek-v3", help="one of `peerwarp list models`: its shape [default: deepseek-v3]")
    for name in ("hidden", "experts", "topk"):
        parser.add_argument(f"--{name}", type=int, help="instead of the model's")
    parser.add_argument("--tokens", default="1,8,64,256,4096", help="of a rank, by commas [default: 1,8,64,256,4096]")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp8"))
    parser.add_argument("--ranks", type=int, help="a GPU each [default: all GPUs]")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--only", help="names of libraries, or their beginnings, by commas: Peerwarp,NCCL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="writes all times to a file")
    return parser.parse_args(given)


def asked(given: argparse.Namespace, gpus: int) -> dict[str, Any]:
    """The request."""
    known = models()
    if given.model not in known:
        raise InvalidArgument("--model", given.model, ", ".join(known))
    shape = {name: getattr(given, name) or size for name, size in known[given.model].items()}
    ranks = given.ranks or gpus
    if not 1 <= ranks <= gpus:
        raise InvalidArgument("--ranks", ranks, f"1 to {gpus}, the GPUs that PyTorch sees")
    if given.iterations < 1:
        raise InvalidArgument("--iterations", given.iterations, "1 or more")
    try:
        tokens = [int(one) for one in given.tokens.split(",")]
    except ValueError:
        tokens = []
    if not tokens or min(tokens) < 1:
        raise InvalidArgument("--tokens", given.tokens, "whole numbers from 1 on, by commas")
    cases = [problem(shape, one, ranks, given.dtype, given.seed) for one in tokens]
    method = {"iterations": given.iterations, "rounds": 10, "flush_l2": False, "seed": given.seed, "eager": True}
    return {"schema": SCHEMA, **method, "only": given.only.split(",") if given.only else None, "cases": cases}


def main(given: list[str]) -> int:
    """0 if ours was right and timed, 1 if not."""
    options = arguments(given)
    if importlib.util.find_spec("torch") is None:
        raise MissingPackage("bench needs PyTorch (pip install torch); `peerwarp bench` does not")
    import torch

    gpus = torch.cuda.device_count()
    if gpus < 2:
        raise PeerwarpError(
            f"PyTorch sees {gpus} GPUs, and bench needs 2 or more: `python -m peerwarp doctor` says what is missing"
        )
    request = asked(options, gpus)
    baselines = run(request, request["cases"][0]["ranks"])
    print(text(request, baselines))
    if options.json:
        Path(options.json).write_text(json.dumps({"request": request, "baselines": baselines}), encoding="utf-8")
    return 0 if baselines and baselines[0]["absent"] is None else 1
