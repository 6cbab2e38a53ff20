"""What `python -m peerwarp bench` asks of scripts, and how it tells what they found: with a stand-in for PyTorch's launcher."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import peerwarp
from peerwarp import _bench, _core


def options(**others: Any) -> argparse.Namespace:
    given = _bench.arguments([])
    return argparse.Namespace(**(vars(given) | others))


def test_what_is_asked_for_is_a_models_shape_on_all_gpus() -> None:
    request = _bench.asked(options(tokens="2,5", topk=3), 4)
    assert (request["schema"], request["eager"], request["rounds"], request["only"]) == (2, True, 10, None)
    for case, tokens in zip(request["cases"], (2, 5), strict=True):
        sizes = {key: case[key] for key in ("hidden", "experts", "topk", "tokens", "ranks", "dtype")}
        assert sizes == {"hidden": 7168, "experts": 256, "topk": 3, "tokens": tokens, "ranks": 4, "dtype": "bf16"}
        assert [len(ids) for ids in case["ids"]] == [3 * tokens] * 4
        for source, ids in enumerate(case["ids"]):
            each = [ids[at : at + 3] for at in range(0, len(ids), 3)]
            assert all(len(set(one)) == 3 for one in each)
            wanted = [sum(any(one // 64 == to for one in token) for token in each) for to in range(4)]
            assert case["rows"][source] == wanted
    # Experts that ranks do not divide: the first ranks have one more.
    few = _bench.problem({"hidden": 8, "experts": 3, "topk": 3}, 1, 2, "bf16", 0)
    assert few["rows"] == [[1, 1], [1, 1]]
    assert _bench.asked(options(ranks=2, only="Peerwarp,NCCL"), 4)["only"] == ["Peerwarp", "NCCL"]
    for field, others in (
        ("--model", {"model": "nobodys"}),
        ("--ranks", {"ranks": 5}),
        ("--ranks", {"ranks": -1}),
        ("--tokens", {"tokens": "1,x"}),
        ("--tokens", {"tokens": "0"}),
        ("--iterations", {"iterations": 0}),
    ):
        with pytest.raises(peerwarp.InvalidArgument) as error:
            _bench.asked(options(**others), 4)
        assert error.value.field == field


def test_scripts_are_those_of_the_program_and_have_what_ours_needs_of_them() -> None:
    scripts = dict(_core.baseline_scripts())
    assert {"timing.py", "baselines.py", "flashinfer_baseline.py"} <= set(scripts)
    case = next(one for one in ast.walk(ast.parse(scripts["baselines.py"])) if isinstance(one, ast.ClassDef) and one.name == "Case")
    there = {one.name for one in case.body if isinstance(one, ast.FunctionDef)}
    there |= {one.attr for one in ast.walk(case) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
    # What every case has is in timing.py.
    there |= {"random", "asked", "rank", "ranks"}
    ours = ast.parse((Path(peerwarp.__file__).parent / "_timed.py").read_text(encoding="utf-8"))
    attributes = [one for one in ast.walk(ours) if isinstance(one, ast.Attribute)]
    of_case = [one for one in attributes if getattr(one.value, "id", getattr(one.value, "attr", "")) == "case"]
    used = {one.attr for one in of_case}
    assert "made_of_tokens" in used and used <= there, used - there
    assert "SCHEMA = 2" in scripts["timing.py"] and _bench.SCHEMA == 2


def time(metric: str, us: list[list[float]], graph: bool = True, rounds: int = 1) -> dict[str, Any]:
    return {"case": 0, "metric": metric, "rounds": rounds, "graph": graph, "host_behind": 0, "times_us": us}


OURS = {
    "name": "Peerwarp",
    "absent": None,
    "checked": True,
    "times": [
        # Of the slowest rank 3, 5 and 4.
        time("dispatch", [[1, 5, 4], [3, 2, 1]]),
        time("round_trip", [[8, 8, 8], [9, 9, 9]]),
        time("round_trip", [[7, 7, 7], [6, 6, 6]], rounds=10),
        time("round_trip", [[20, 20, 20], [20, 20, 20]], graph=False),
    ],
    "memory_bytes": [3 << 20],
    "host_us": [5.25],
    "kernels": [["moe_dispatch", "tuned"]],
}
ABSENT = {"name": "DeepEP", "absent": "No module named 'deep_ep'", "checked": False, "times": [], "memory_bytes": [], "host_us": []}
PLAIN = OURS | {"name": "NCCL", "checked": False, "kernels": [], "host_us": []}


def test_times_are_those_of_the_slowest_rank_and_what_is_not_there_says_why() -> None:
    assert _bench.row(OURS, 0) == ["4.0", "-", "9.0", "7.0", "20.0", "5.2", "3 MiB"]
    assert _bench.row(OURS, 1) == ["-"] * 7
    request = _bench.asked(options(tokens="2"), 2)
    text = _bench.text(request, [OURS, ABSENT, PLAIN])
    assert "hidden 7168, 256 experts, topk 8, 2 tokens a rank, bf16, 2 ranks" in text
    assert "absent: DeepEP: No module named 'deep_ep'" in text
    assert "not compared: NCCL" in text and "not compared: Peerwarp" not in text
    assert "kernels, tuned: moe_dispatch" in text


def launcher(folder: Path, monkeypatch: pytest.MonkeyPatch, commands: str) -> None:
    """A program in place of Python. It is called as
    `-m torch.distributed.run --standalone --nproc-per-node 2 SCRIPT REQUEST REPLY`."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{commands}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_scripts_are_run_by_torchs_launcher_and_what_they_say_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reply = tmp_path / "reply.json"
    reply.write_text(json.dumps({"baselines": [OURS]}), encoding="utf-8")
    seen = tmp_path / "seen"
    said = "echo 'progress: Peerwarp: problem 1 of 1' >&2; echo loud; echo louder >&2"
    # Python imports modules of the current folder first: it is the scripts' own.
    said += "; [ $(pwd -P) = $(cd $(dirname $6) && pwd -P) ] || exit 1"
    launcher(tmp_path, monkeypatch, f"{said}; echo $2 $5 > {seen}; cat $6 $7 >> {seen}; ls $(dirname $6) >> {seen}; cp {reply} $8")
    assert _bench.run({"schema": 2}, 2) == [OURS]
    told = seen.read_text(encoding="utf-8")
    for word in ("torch.distributed.run 2", "from peerwarp._timed import main", '{"schema": 2}', "timing.py"):
        assert word in told
    assert capfd.readouterr().err == "Peerwarp: problem 1 of 1\n"
    launcher(tmp_path, monkeypatch, "for i in 1 2 3; do echo line $i >&2; done; exit 1")
    with pytest.raises(peerwarp.PeerwarpError, match=r"the scripts failed:\nline 1\nline 2\nline 3"):
        _bench.run({}, 2)
