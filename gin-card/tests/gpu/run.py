"""Runs rounds.cu between GPUs of one host: each rank is a process, and by default a node of its own to NCCL.

run.py --program FILE --card FILE --nccl FOLDER --out FILE [--ranks N] [--ranks-per-node N] [--rounds N] [--budget SECONDS] [PART ..]

FOLDER has libnccl.so.2 in the version of the headers that the program was compiled with. Parts run one after the other, each with a
time-out of its own; a part begins only if all of its time is left of the budget. The results are written after each part.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

REORDER = {"PEERWARP_GIN_REORDER_SEED": "7", "PEERWARP_GIN_SPREAD_US": "100"}
# Rows of one round overtake those of another.
FAR_APART = REORDER | {"PEERWARP_GIN_SPREAD_US": "500"}
DELAY = {"PEERWARP_GIN_DELAY_US": "20"}
ROWS, WORDS = 32, 512


@dataclass(frozen=True)
class Part:
    """A kernel under a card's manners, and what has to come of it."""

    kernel: str
    manners: dict[str, str]
    expects: str  # right, wrong, short (a row is missing), left (the last rank ends)
    rounds: int
    seconds: int = 60
    timeout_ms: int = 20_000
    leaves: list[str] = field(default_factory=list)


def parts(rounds: int) -> dict[str, Part]:
    drop = {"PEERWARP_GIN_DROP_PUT": str(ROWS * 100 + 5)}
    return {
        "each": Part("each", {}, "right", rounds, 120),
        "strong": Part("strong", {}, "right", rounds, 120),
        "each-delay": Part("each", DELAY, "right", rounds, 120),
        "strong-reorder": Part("strong", REORDER, "right", rounds, 150),
        "each-reorder": Part("each", REORDER, "right", rounds, 150),
        "weak": Part("weak", {}, "right", 2_000),
        "weak-reorder": Part("weak", FAR_APART, "wrong", 2_000),
        "onesignal": Part("onesignal", {}, "right", 2_000),
        "onesignal-reorder": Part("onesignal", FAR_APART, "wrong", 2_000),
        "each-drop": Part("each", drop, "short", 2_000, timeout_ms=2_000),
        "leaves": Part("each", {}, "left", 2_000, timeout_ms=2_000, leaves=["500"]),
    }


def environment(options: argparse.Namespace, rank: int, part: Part) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PEERWARP_GIN_"))}
    folders = [options.nccl, own.get("LD_LIBRARY_PATH", "")]
    return own | part.manners | {
        "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder),
        "NCCL_RMA_PLUGIN": str(Path(options.card).resolve()),
        "NCCL_HOSTID": f"node{rank // options.ranks_per_node}",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN"),
    }


def verdict(part: Part, ranks: list[dict]) -> bool:
    """Whether the ranks report the expected result."""
    if part.expects == "left":
        ranks = ranks[:-1]
    if any("rounds" not in rank for rank in ranks):
        return False
    is_whole = all(rank["rounds"] == part.rounds and not rank["stopped"] for rank in ranks)
    wrong = [rank["wrong_rounds"] for rank in ranks]
    if part.expects == "right":
        return is_whole and not any(wrong)
    if part.expects == "wrong":
        return any(wrong)
    stopped = all(rank["stopped"] == "rows did not come" and not rank["wrong_rounds"] for rank in ranks)
    # Each source loses one row.
    missing = [rank["awaited"] - rank["count"] for rank in ranks]
    return stopped and (part.expects == "left" or all(count == len(ranks) - 1 for count in missing))


def run(options: argparse.Namespace, part: Part) -> dict:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        processes, files = [], []
        for rank in range(options.ranks):
            files.append((Path(folder) / f"result{rank}", Path(folder) / f"said{rank}"))
            arguments = [rank, options.ranks, f"{folder}/id", files[rank][0], part.kernel, part.rounds, ROWS, WORDS, part.timeout_ms]
            with open(files[rank][1], "w") as said:
                command = [options.program, *map(str, arguments), *part.leaves]
                # A group of its own, so that all of it can be ended.
                new = subprocess.Popen(command, env=environment(options, rank, part), stdout=said, stderr=said, process_group=0)
            processes.append(new)
        end, codes = begin + part.seconds, []
        try:
            for process in processes:
                try:
                    codes.append(process.wait(max(0.1, end - time.monotonic())))
                except subprocess.TimeoutExpired:
                    codes.append("timeout")
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        ranks, said = [], []
        for result, lines in files:
            try:
                ranks.append(json.loads(result.read_text()))
            except (OSError, ValueError) as error:
                ranks.append({"failed": "no result", "why": str(error)})
            said.append(lines.read_text(errors="replace")[-4000:])
    # The card names what it loses, and a process that ends.
    names = {"short": "never lands, as asked for", "left": f"rank {options.ranks - 1}, process "}.get(part.expects)
    is_named = names is None or names in said[0]
    good = verdict(part, ranks) and is_named
    result = {"good": good, "expects": part.expects, "kernel": part.kernel, "manners": part.manners, "codes": codes}
    result |= {"seconds": round(time.monotonic() - begin, 1), "ranks": ranks}
    lines = [line for text in said for line in text.splitlines() if "gin-card" in line][:8]
    return result | ({"said": lines} if good else {"said": said})


def main() -> int:
    # A run that is ended from outside ends its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser()
    for name in ("program", "card", "nccl", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--budget", type=float, default=540)
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    known = parts(options.rounds)
    if unknown := [name for name in options.parts if name not in known]:
        parser.error(f"{unknown[0]} is no part: {', '.join(known)} are")
    end = time.monotonic() + options.budget
    results = {"rows": ROWS, "words": WORDS, "gpus": options.ranks, "parts": {}, "left_out": []}
    for name in options.parts or known:
        if time.monotonic() + known[name].seconds > end:
            results["left_out"].append(name)
        else:
            result = results["parts"][name] = run(options, known[name])
            times = [rank.get("us_a_round") for rank in result["ranks"]]
            print(name, "good" if result["good"] else "BAD", f"{result['seconds']} s, us a round: {times}", flush=True)
        Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    return int(not all(part["good"] for part in results["parts"].values()) or bool(results["left_out"]))


if __name__ == "__main__":
    raise SystemExit(main())
