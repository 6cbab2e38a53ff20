"""The five shapes of gpu-mode's all-to-all task with emitted kernels, called from PyTorch: checked, then timed as the task's
harness does it (host clock and barriers) and as `peerwarp bench` does it (events).

    peerwarp generate --catalogue bench/baselines/gpumode.toml --out emitted
    torchrun --nproc-per-node 8 bench/baselines/gpumode.py --emitted emitted --cache built --json gpumode.json

The world is as large as torchrun makes it; the catalogue has 2, 4 and 8 ranks. docs/how-to/bench.md says what is timed.
"""

import argparse
import json
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from statistics import mean, median

# PyTorch maps symmetric memory for multicast, too, where it can: nothing here uses that.
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist

from baselines import Case
from emitted import Emitted, EmittedError, Nvcc
from nccl_baselines import Plain, Sorted
from peerwarp_torch import RoundTrip
from timing import FLUSHED_BYTES, Timer, attempt, graph_of

SHAPES = Path(__file__).resolve().parents[2] / "src/families/moe/gpumode.json"
DTYPE = torch.float16
# What the task allows.
RTOL, ATOL = 1e-2, 5e-3
# A rank that fails must not leave the others waiting for long; compiling takes a while.
TIMEOUT = timedelta(seconds=300)
METRICS = ["g1", "ev", "wall mean", "wall median"]


class Failed(Exception):
    """What went wrong on some rank; all of them know."""


def stage(name, action):
    """What `action` returns; if it fails on any rank, all of them end there."""
    result, problem = attempt(action)
    if problem:
        raise Failed(f"{name}: {problem}")
    return result


def shapes():
    """The task's shapes, by the names that variants have them under."""
    names = {"hidden_dim": "hidden", "num_experts": "experts", "experts_per_token": "topk", "max_num_tokens": "tokens"}
    asked = json.loads(SHAPES.read_text(encoding="utf-8"))["all2all"]
    return [{names[name]: value for name, value in shape.items()} for shape in asked]


def variants(emitted, shape, ranks):
    """The emitted dispatch and combine of a shape."""
    key = [f"h{shape['hidden']}", f"e{shape['experts']}", f"k{shape['topk']}", f"t{shape['tokens']}", f"r{ranks}", "fp16"]
    try:
        return emitted.find("moe_dispatch", *key, "expert", "both"), emitted.find("moe_combine", *key, "both")
    except EmittedError as error:
        raise EmittedError(f"{error}; bench/baselines/gpumode.toml is the catalogue to generate, with its `ranks`") from None


class Inputs:
    """What one rank has in a round: as many tokens as the task draws, 1 to one less than the most, each to different
    experts, with weights that are not normalised."""

    def __init__(self, shape, seed):
        generator = torch.Generator("cuda").manual_seed(seed + dist.get_rank())
        how = {"device": "cuda", "generator": generator}
        self.shape = shape
        self.n = int(torch.randint(1, shape["tokens"], [1], **how).item())
        chance = torch.rand(self.n, shape["experts"], **how)
        # With room behind it, as dispatch wants it.
        self.ids = torch.full((shape["tokens"], shape["topk"]), -1, dtype=torch.int32, device="cuda")[: self.n]
        self.ids.copy_(chance.topk(shape["topk"]).indices)
        self.weights = torch.rand(self.n, shape["topk"], dtype=torch.float32, **how)
        self.x = torch.randn(self.n, shape["hidden"], dtype=DTYPE, **how)

    def owners(self):
        """The rank that has the expert of each id."""
        few, larger = divmod(self.shape["experts"], dist.get_world_size())
        ends = [rank * few + min(rank, larger) for rank in range(1, dist.get_world_size() + 1)]
        return torch.bucketize(self.ids, torch.tensor(ends, device="cuda"), right=True)

    def reference(self):
        """`y = x * (1 + rank)` of every expert's rank, weighted and summed: each product rounded as an expert's output is,
        the sum rounded once."""
        owner = self.owners()
        total = torch.zeros(self.n, self.shape["hidden"], dtype=torch.float32, device="cuda")
        for k in range(self.shape["topk"]):
            y = (self.x.float() * (1 + owner[:, k, None])).to(DTYPE)
            total += y.float() * self.weights[:, k, None]
        return total.to(DTYPE)

    def wrong(self, out):
        """How many elements are outside of what the task allows."""
        return int((~torch.isclose(out, self.reference(), rtol=RTOL, atol=ATOL)).sum().item())


class SortedExpert:
    """The task without a library: sort, NCCL, the expert as a kernel of PyTorch."""

    def __init__(self, case, inputs):
        case.x = inputs.x
        self.sorted, self.factor = Sorted(case), 1 + dist.get_rank()

    def __call__(self):
        self.sorted.dispatch()
        self.sorted.y = self.sorted.rows.view(DTYPE) * self.factor
        self.sorted.combine()
        return self.sorted.out


def gathered(value):
    """Every rank's."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def summary(times):
    ordered = sorted(times)
    at = [ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.1, 0.9)]
    spread = {"mean": mean(times), "median": median(times), "p10": at[0], "p90": at[1]}
    return {name: round(us, 2) for name, us in spread.items()}


class Timing:
    """Everything that is timed about one way to do a round."""

    def __init__(self, iterations, repeats):
        self.timer, self.repeats = Timer(iterations, flush_l2=False), repeats
        self.flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
        # The harness has NCCL's barriers.
        self.nccl = dist.new_group(backend="nccl")

    def all(self, step, graph=True):
        found = {"wall": self.wall(step)}
        found["ev"], found["host_behind"] = self.events(step)
        if graph:
            found["g1"], _ = self.events(graph_of([step]))
        return found

    def wall(self, step):
        """By the host's clock, as the task's harness reads it: caches are cleared, all ranks are through a barrier before
        and after. The first rank's times count."""
        times = []
        for number in range(self.repeats):
            self.flushed.fill_(number % 256)
            torch.cuda.synchronize()
            dist.barrier(group=self.nccl)
            begun = time.perf_counter()
            step()
            torch.cuda.synchronize()
            dist.barrier(group=self.nccl)
            times.append((time.perf_counter() - begun) * 1e6)
        return summary(gathered(times)[0])

    def events(self, step):
        """The slowest rank's time in each iteration, and how many iterations have the host's part in them."""
        ((times, behind),) = self.timer.times([step])
        return summary([max(of_ranks) for of_ranks in zip(*gathered(times))]), max(gathered(behind))


class Shape:
    """One of the task's shapes on all ranks, with inputs to time it with."""

    def __init__(self, shape, options, timing):
        self.shape, self.options, self.timing = shape, options, timing
        self.name = "hidden {hidden}, {experts} experts, topk {topk}, {tokens} tokens".format(**shape)
        self.inputs = Inputs(shape, options.seed)
        self.compared = 0

    def stage(self, name, action):
        return stage(f"{self.name}: {name}", action)

    def right(self, what, rounds):
        """Compares what `rounds` returns, `[(inputs, out)]`, with the reference."""
        found = self.stage(what, lambda: [(out.numel(), i.wrong(out)) for i, out in rounds()])
        compared, wrong = (sum(map(sum, of)) for of in zip(*gathered(list(zip(*found)))))
        if wrong:
            raise Failed(f"{self.name}: {what}: {wrong} of {compared} values are wrong")
        self.compared += compared

    def ours(self, emitted, library):
        dispatch, combine = variants(emitted, self.shape, dist.get_world_size())

        def make():
            return RoundTrip(library, dispatch, combine, self.shape, DTYPE, self.options.wait_budget)

        round_trip = self.stage("setting up", make)

        def step():
            return round_trip(self.inputs.x, self.inputs.ids, self.inputs.weights)

        def back_to_back():
            rounds = range(1, self.options.rounds + 1)
            inputs = [Inputs(self.shape, self.options.seed + 1000 * number) for number in rounds]
            outs = [round_trip(i.x, i.ids, i.weights).clone() for i in inputs]
            round_trip.finish()
            return zip(inputs, outs)

        def once_more():
            out = step()
            round_trip.finish()
            return [(self.inputs, out)]

        def times():
            found = self.timing.all(step)
            round_trip.finish()
            return found

        self.right("rounds back to back", back_to_back)
        found = self.stage("timing", times)
        self.right("a round after timing", once_more)
        return found, {"dispatch": dispatch.name, "combine": combine.name}

    def baselines(self):
        """What NCCL and PyTorch take for the same inputs."""
        inputs, ranks = self.inputs, dist.get_world_size()
        owners = inputs.owners()
        asked = {
            **self.shape,
            "ranks": ranks,
            "dtype": "fp16",
            "ids": gathered(inputs.ids.flatten().tolist()),
            "weights": gathered(inputs.weights.flatten().tolist()),
            "rows": gathered([int((owners == to).any(1).sum().item()) for to in range(ranks)]),
        }
        case = Case(asked, dist.get_rank(), self.options.seed)
        sorting = self.stage(Sorted.NAME, lambda: SortedExpert(case, inputs))
        plain = self.stage(Plain.NAME, lambda: Plain(case))

        def exchange():
            plain.dispatch()
            plain.combine()

        self.right(Sorted.NAME, lambda: [(inputs, sorting())])
        exchange()
        return {Sorted.NAME: self.timing.all(sorting, graph=False), Plain.NAME: self.timing.all(exchange)}

    def result(self, emitted, library):
        ours, kernels = self.ours(emitted, library)
        us = {"Peerwarp": ours}
        if not self.options.no_baselines:
            us.update(self.baselines())
        us["nothing"] = {"wall": self.timing.wall(lambda: None)}
        tokens = gathered(self.inputs.n)
        if dist.get_rank() == 0:
            print(f"{self.name}: {self.compared} values right, timed", file=sys.stderr, flush=True)
        return {**self.shape, "tokens_per_rank": tokens, "kernels": kernels, "values_compared": self.compared, "us": us}


def usable(named):
    """A compiler for the CUDA that PyTorch has."""
    nvcc, cuda = Nvcc(named), torch.version.cuda
    if nvcc.release[0] != int(cuda.split(".")[0]):
        release = ".".join(map(str, nvcc.release))
        raise EmittedError(f"{nvcc.path} is of CUDA {release}, and PyTorch of {cuda}; name another one by --nvcc")
    return nvcc


def compiled(options, emitted):
    """A library for each shape. The first rank compiles them all at once, and the others find them."""
    nvcc = stage("compiler", lambda: usable(options.nvcc))
    pairs = stage("emitted files", lambda: [variants(emitted, shape, dist.get_world_size()) for shape in shapes()])

    def libraries():
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            return list(pool.map(lambda pair: nvcc.library(pair, options.cache), pairs))

    stage("compiling", lambda: libraries() if dist.get_rank() == 0 else None)
    return stage("compiled libraries", libraries)


def value_of(times, metric):
    of, _, which = metric.partition(" ")
    return times[of][which or "median"] if of in times else None


def table(cases):
    """As text: a line for each way and metric, a column for each shape, and the geometric mean."""
    head = ["us", ""] + [f"{c['experts']}e k{c['topk']} h{c['hidden']} m{c['tokens']}" for c in cases] + ["geomean"]
    lines = [head]
    for way in cases[0]["us"]:
        for metric in METRICS:
            values = [value_of(case["us"][way], metric) for case in cases]
            if None not in values:
                geomean = math.exp(mean(map(math.log, values)))
                lines.append([way, metric] + [f"{us:.1f}" for us in values] + [f"{geomean:.1f}"])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def machine():
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "gpu": properties.name,
        "ranks": dist.get_world_size(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "python": sys.version.split()[0],
    }


def run(options):
    emitted = stage("emitted files", lambda: Emitted(options.emitted))
    begun = time.perf_counter()
    libraries = compiled(options, emitted)
    compiling_s = time.perf_counter() - begun
    timing = stage("timer", lambda: Timing(options.iterations, options.repeats))
    # The first of everything takes longer.
    timing.wall(lambda: None)
    floor, _ = timing.events(graph_of([lambda: torch.cuda._sleep(0)]))
    each = zip(shapes(), libraries)
    cases = [Shape(shape, options, timing).result(emitted, library) for shape, library in each]
    method = {name: getattr(options, name) for name in ("iterations", "repeats", "rounds", "seed")}
    found = {"machine": machine(), "peerwarp": emitted.version, "compiling_s": round(compiling_s, 1), "method": method}
    return {**found, "floor_us": floor, "shapes": cases}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emitted", required=True, help="folder that `peerwarp generate` wrote")
    parser.add_argument("--cache", required=True, help="folder for compiled libraries; what is there is not compiled again")
    parser.add_argument("--json", help="file to write results to")
    parser.add_argument("--nvcc", help="the compiler [default: PEERWARP_NVCC, or one that is found]")
    parser.add_argument("--iterations", type=int, default=50, help="of ev and g1 [default: %(default)s]")
    parser.add_argument("--repeats", type=int, default=100, help="of wall [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that are checked first [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="decides inputs [default: %(default)s]")
    parser.add_argument("--wait-budget", type=float, default=5.0, help="seconds that a kernel waits at most [default: 5]")
    parser.add_argument("--no-baselines", action="store_true", help="time Peerwarp only")
    options = parser.parse_args()
    for name in ("iterations", "repeats", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be 1 or more")
    if not options.wait_budget > 0:
        parser.error(f"--wait-budget {options.wait_budget}: must be more than 0")
    return options


def main():
    options = parsed()
    rank, ranks = os.environ.get("LOCAL_RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or ranks is None:
        sys.exit("start it with torchrun: torchrun --nproc-per-node GPUS gpumode.py ...")
    if torch.cuda.device_count() < int(ranks):
        sys.exit(f"there are {torch.cuda.device_count()} GPUs here, and torchrun started {ranks} processes")
    torch.cuda.set_device(int(rank))
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT, device_id=torch.device("cuda", int(rank)))
    try:
        found = run(options)
    except Failed as failed:
        if rank == "0":
            print(f"error: {failed}", file=sys.stderr, flush=True)
        # Kernels of other ranks may still wait: nothing collective any more.
        os._exit(1)
    if rank == "0":
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(table(found["shapes"]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
