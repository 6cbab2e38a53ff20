"""Peerwarp's dispatch and combine as a function of PyTorch tensors, by the C entry points of emitted sources.

One process a rank. Memory that all ranks reach is PyTorch's symmetric memory; everything else are tensors.
"""

import ctypes

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from emitted import EmittedError, Entry, Status, arena, together

# Pointers are aligned to 16 bytes: so far apart lie the numbers of tokens, in words.
COUNT_WORDS = 4


class Aborted(Exception):
    """A wait of a kernel lasted longer than the budget: who waited for whom."""


def load(library):
    """Loads a library that was compiled without a CUDA runtime: PyTorch's is the one that it finds."""
    name = f"libcudart.so.{torch.version.cuda.split('.')[0]}"
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise EmittedError(f"{library} with the {name} of PyTorch {torch.__version__}: {error}") from None


class Shared:
    """So many bytes on each rank's GPU, which all ranks reach. Collective."""

    def __init__(self, size):
        here = torch.device("cuda", torch.cuda.current_device())
        self.bytes = symmetric_memory.empty(size, dtype=torch.uint8, device=here)
        self.bases = symmetric_memory.rendezvous(self.bytes, dist.group.WORLD).buffer_ptrs

    def addresses(self, offset):
        """Of each rank's byte at `offset`."""
        return [base + offset for base in self.bases]

    def fill(self, offset, size, byte):
        """On this rank."""
        self.bytes[offset : offset + size].fill_(byte)

    def read(self, offset, struct):
        """Of this rank, when everything on its GPU is done."""
        torch.cuda.synchronize()
        return struct.from_buffer_copy(bytes(self.bytes[offset : offset + ctypes.sizeof(struct)].tolist()))


class RoundTrip:
    """Dispatch with an expert in it, and combine: `out = round_trip(x, ids, weights)`.

    `x` is `[n, hidden]`, `ids` int32 and `weights` float32 `[n, topk]`, with `n` up to the `tokens` of the kernels; a rank
    without tokens calls it, too. It launches on the current stream, the same one each time, and does not wait. The rows
    that it returns are overwritten by the next call. All ranks call it equally often; calls may be captured in a graph.
    Nothing is copied.
    """

    def __init__(self, library, dispatch, combine, shape, dtype, wait_budget):
        """On all ranks: collective. `shape` has `hidden`, `experts`, `topk` and `tokens`; waits that last longer than
        `wait_budget` seconds end the launches of all ranks."""
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.shape, self.dtype, self.kernels = shape, dtype, (dispatch, combine)
        for kernel in self.kernels:
            if kernel.ranks != self.ranks:
                raise EmittedError(f"{kernel.name}: for {kernel.ranks} ranks, and there are {self.ranks}")
        loaded = load(library)
        self.entries = [Entry(kernel, loaded) for kernel in self.kernels]
        self.buffers = together(self.kernels)
        # The expert's rows are what dispatch leaves: of another layout there are more or fewer of them.
        left, taken = self.buffers["rows"].bytes, self.buffers.pop("y").bytes
        if left != taken:
            names = f"{dispatch.name} leaves {left} bytes of rows, and {combine.name} takes {taken}"
            raise EmittedError(f"{names}: both have to be of one layout")
        self.offsets, size = arena(self.buffers)
        self.shared = Shared(size)
        self.local = {}
        for key, buffer in self.buffers.items():
            if not buffer.symmetric:
                self.local[key] = torch.empty(buffer.bytes, dtype=torch.uint8, device="cuda")
        self.out = self.local["out"].view(dtype).view(shape["tokens"], shape["hidden"])
        self.counts = torch.arange(shape["tokens"] + 1, dtype=torch.int32, device="cuda")
        self.counts = self.counts.repeat_interleave(COUNT_WORDS)
        self.args = [self.arguments(kernel, round(wait_budget * 1e9)) for kernel in self.kernels]
        # Kernels are loaded here: while one of them runs, that could wait for it to end.
        self.resident = [entry.resident_blocks() for entry in self.entries]
        self.reset()

    def arguments(self, kernel, wait_budget_ns):
        args = kernel.Args(wait_budget_ns=wait_budget_ns, rank=self.rank)
        for buffer in kernel.buffers.values():
            key = "rows" if buffer.name == "y" else kernel.key(buffer)
            if key in self.offsets:
                getattr(args, buffer.name)[:] = self.shared.addresses(self.offsets[key])
            elif key in self.local:
                setattr(args, buffer.name, self.local[key].data_ptr())
        return args

    def reset(self):
        """Gives all buffers their first values, on all ranks: before the first call, and after an abort."""
        for key, offset in self.offsets.items():
            self.shared.fill(offset, self.buffers[key].bytes, self.buffers[key].first_byte)
        for key, tensor in self.local.items():
            tensor.fill_(self.buffers[key].first_byte)
        torch.cuda.synchronize()
        # The first put of a fast rank must not be cleared by a slow one.
        dist.barrier()

    def __call__(self, x, ids, weights):
        self.check_inputs(x, ids, weights)
        n = x.shape[0]
        given = {"n": self.counts.data_ptr() + n * COUNT_WORDS * 4, "rows_there": n, "empty_id": -1}
        if n > 0:
            given.update(x=x.data_ptr(), ids=ids.data_ptr(), weights=weights.data_ptr())
        stream = torch.cuda.current_stream().cuda_stream
        for entry, args in zip(self.entries, self.args):
            for name, value in given.items():
                if hasattr(args, name):
                    setattr(args, name, value)
            entry.launch(args, stream)
        return self.out[:n]

    def check_inputs(self, x, ids, weights):
        n, topk = x.shape[0], self.shape["topk"]
        if n > self.shape["tokens"]:
            raise ValueError(f"x has {n} rows: these kernels are for {self.shape['tokens']} at most")
        wanted = [("x", x, self.dtype, (n, self.shape["hidden"]))]
        wanted += [("ids", ids, torch.int32, (n, topk)), ("weights", weights, torch.float32, (n, topk))]
        for name, tensor, dtype, shape in wanted:
            found = (tensor.device, tensor.dtype, tuple(tensor.shape), tensor.is_contiguous())
            if found != (self.out.device, dtype, shape, True):
                layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
                raise ValueError(
                    f"{name} is {dtype_of(tensor.dtype)} {list(tensor.shape)} on {tensor.device}, {layout}: it must be "
                    f"{dtype_of(dtype)} {list(shape)} on {self.out.device}, contiguous"
                )

    def finish(self):
        """Waits for this rank's launches. Raises `Aborted` if a wait lasted too long on any rank."""
        status = self.shared.read(self.offsets["status"], Status)
        words = status.words(self.kernels)
        if words is not None:
            raise Aborted(words)


def dtype_of(dtype):
    return str(dtype).removeprefix("torch.")
