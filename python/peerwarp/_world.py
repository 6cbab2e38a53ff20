"""Worlds: the ranks that kernels run on."""

from __future__ import annotations

import importlib.util
import json
import math
import operator
import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from peerwarp import _core
from peerwarp._device import ELEMENTS, Device
from peerwarp.errors import InvalidArgument, MissingPackage, NoDriver, PeerwarpError

T = TypeVar("T")


class World:
    """The ranks that kernels run on. Made by `World.simulated`, `World.on_gpu`, `World.from_torch` or `World.in_place_of`."""

    def __init__(self, core: _core.SimulatedWorld | _core.GpuWorld, ranks: int, rank: int | None) -> None:
        self._core, self._ranks, self._rank = core, ranks, rank
        self._gpu = 0
        self._formed: _Formed | None = None

    @classmethod
    def simulated(cls, ranks: int, *, seed: int = 0, check_races: bool = True) -> World:
        """Ranks of this process, on its CPU: no GPU, no driver.

        Args:
            ranks: how many, 1 to 64.
            seed: decides the schedules. Each call of an operation has one of its own; the same calls have the same ones.
            check_races: whether races, uninitialised and stale reads are looked for. Bounds, flags and deadlocks always are.

        Each call runs by itself, in memory without a write yet, in the epoch after the one before.
        """
        number = whole("ranks", ranks, 1, 64)
        return cls(_core.SimulatedWorld(number, whole("seed", seed, 0, 2**64 - 1), flag("check_races", check_races)), number, None)

    @classmethod
    def on_gpu(cls, device: Any = None, *, wait_budget: float = 60.0, share_sms: bool = False, launches_at_once: int = 1) -> World:
        """One rank on a GPU of this process. It has no peers, and needs no process group.

        Args:
            device: the GPU, as a `torch.device` or a number; else `torch.cuda.current_device()`.
            wait_budget: seconds that a wait of a kernel may last, such as of a block for another one.
            share_sms: as of `from_torch`.
            launches_at_once: as of `from_torch`.
        """
        at_once = whole("launches_at_once", launches_at_once, 1, 16)
        shared = flag("share_sms", share_sms), at_once
        budget, gpu = seconds_of("wait_budget", wait_budget), _gpu_number(device)
        if (why := _core.why_no_gpu()) is not None:
            raise NoDriver(why)
        world = cls(_core.GpuWorld.alone(gpu, budget, shared, compilers()), 1, 0)
        world._gpu = gpu
        return world

    def empty(self, shape: int | Sequence[int], dtype: str) -> Any:
        """Memory that every rank reaches, for parameters that are windows: a tensor of this rank's part, of zeros.

        In a world of GPUs all ranks make it in the same order, with the same size. The memory lives as long as the tensor and what
        shares its memory, and keeps the world. In a simulated world it is a list with one array for each rank.

        Args:
            shape: the tensor's shape.
            dtype: the type of its elements: `"bf16"`, `"fp16"`, `"fp8"`, `"f32"`, `"i32"` or `"u8"`.
        """
        if dtype not in ELEMENTS:
            raise InvalidArgument("dtype", dtype, ", ".join(ELEMENTS))
        axes = (shape,) if isinstance(shape, int) else tuple(shape)
        lengths = tuple(whole(f"shape[{axis}]", length, 1, 2**62) for axis, length in enumerate(axes))
        on = runs_on(self)
        if isinstance(on, Device):
            address, owner = on.core.symmetric(math.prod(lengths) * ELEMENTS[dtype][2])
            return on.tensor(owner, address, dtype, lengths)
        import numpy as np

        name = {"bf16": "uint16", "fp16": "float16", "fp8": "uint8", "f32": "float32", "i32": "int32", "u8": "uint8"}[dtype]
        return [np.zeros(lengths, name) for _ in range(self.ranks)]

    @classmethod
    def from_torch(
        cls,
        group: Any = None,
        *,
        device: Any = None,
        wait_budget: float = 60.0,
        form_timeout: float = 60.0,
        share_sms: bool = False,
        share_gpus: bool = False,
        launches_at_once: int = 1,
    ) -> World:
        """The ranks of a `torch.distributed` process group of one machine, each with its GPU.

        Ranks meet at a port of rank 0, whose number and a secret go through the group; `PEERWARP_SECRET`, set for all ranks, is
        used instead of that secret. Raises on all ranks if one of them has no GPU, or is on another machine. Ranks send each other
        bytes, and no pickle: what a stranger sends into the group is an error.

        Args:
            group: the process group; the default group if none.
            device: this rank's GPU, as a `torch.device` or a number; else `torch.cuda.current_device()`.
            wait_budget: seconds that a wait of a kernel may last.
            form_timeout: seconds that ranks wait for each other to come together.
            share_sms: whether blocks of other kernels may run on the SMs of these kernels' blocks.
            share_gpus: whether several ranks may have one GPU, to try and test: they take turns on it, so that a wait takes
                milliseconds, and times say nothing about links.
            launches_at_once: how many launches of a rank may be under way at once, such as of two operations on a stream each; the
                same on all ranks. Each kernel has a part of the GPU's SMs then, so that blocks of all of them fit.
        """
        torch, dist = _torch_distributed()
        ranks, rank = whole("ranks of the group", dist.get_world_size(group), 1, 64), dist.get_rank(group)
        at_once = whole("launches_at_once", launches_at_once, 1, 16)
        if ranks == 1:
            return cls.on_gpu(device, wait_budget=wait_budget, share_sms=share_sms, launches_at_once=at_once)

        def own() -> tuple[int, float, float]:
            if (why := _core.why_no_gpu()) is not None:
                raise NoDriver(why)
            return _gpu_number(device), seconds_of("wait_budget", wait_budget), seconds_of("form_timeout", form_timeout)

        group_of = _Group(torch, dist, group, ranks, rank)
        gpu, budget, timeout = _agree(group_of, own)
        meeting = group_of.of_first([f"127.0.0.1:{_free_port()}", _core.draw_secret()] if rank == 0 else [])
        if len(meeting) != 2 or not re.fullmatch(r"127\.0\.0\.1:[0-9]{1,5}", meeting[0]):
            raise _malformed(0, meeting[:1])
        address, drawn = meeting
        secret = os.environ.get("PEERWARP_SECRET", drawn)
        shared = flag("share_sms", share_sms), flag("share_gpus", share_gpus), at_once
        return cls._of_process(_Formed(ranks, (address, secret), (budget, timeout), shared), rank, gpu, takes_place=False)

    @classmethod
    def in_place_of(cls, ticket: bytes, rank: int, *, device: Any = None) -> World:
        """The world of a new process that takes the place of a rank without which the others go on.

        It makes the operations and the memory that the others have, in the same order, and calls `replace`, as they do. Launches
        before that are refused. It needs no process group.

        Args:
            ticket: what `World.ticket` returned to any rank of the world. It has the options of `from_torch`, too.
            rank: the rank whose place it takes.
            device: its GPU, as of `from_torch`.
        """
        formed = _Formed.of_ticket(ticket)
        number, gpu = whole("rank", rank, 0, formed.ranks - 1), _gpu_number(device)
        if (why := _core.why_no_gpu()) is not None:
            raise NoDriver(why)
        return cls._of_process(formed, number, gpu, takes_place=True)

    @classmethod
    def _of_process(cls, formed: _Formed, rank: int, gpu: int, *, takes_place: bool) -> World:
        core = _core.GpuWorld((rank, formed.ranks, gpu), formed.meeting, formed.times, formed.shared, compilers(), takes_place)
        world = cls(core, formed.ranks, rank)
        world._gpu, world._formed = gpu, formed
        return world

    def ticket(self) -> bytes:
        """What a new process needs to take the place of a rank, for `World.in_place_of`: ASCII, the same on all ranks.

        It holds the world's secret: only a process that may become a rank gets it. Raises `InvalidArgument` in a simulated world
        and in one of a single rank.
        """
        if self._formed is None:
            raise InvalidArgument("world", repr(self), "one of several processes: World.from_torch or World.in_place_of")
        return self._formed.to_ticket()

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self._ranks

    @property
    def rank(self) -> int | None:
        """This process's rank; `None` where all ranks are in this process."""
        return self._rank

    @property
    def is_simulated(self) -> bool:
        """Whether ranks are simulated."""
        return isinstance(self._core, _core.SimulatedWorld)

    @property
    def fault(self) -> Any:
        """A word on this rank's GPU that says whether the world was aborted, int32 `(1,)`: 0 while all is well, and 1 + the rank
        that gave up first after a wait has run out of time, on every rank.

        A kernel or a copy on a stream reads it without waiting for anything; `check` then says what happened, and `reset` clears
        it. No other code may write it; it is dropped before `leave`.

        Raises `InvalidArgument` in a simulated world, where a run says so by itself.
        """
        on = runs_on(self)
        if not isinstance(on, Device):
            raise InvalidArgument("world", "simulated", "one of GPUs: a simulated run raises what is wrong")
        address, keeper = on.core.fault_word(on.rank)
        return on.tensor(keeper, address, "i32", (1,))

    def check(self) -> None:
        """Raises `Aborted` if a wait of a kernel has run out of time on any rank. A simulated run says so by itself."""
        if isinstance(self._core, _core.GpuWorld):
            self._core.check()

    def reset(self) -> None:
        """Clears flags, epochs and counters after `Aborted`; all ranks call it. Nothing is left to clear in a simulated world."""
        if isinstance(self._core, _core.GpuWorld):
            self._core.reset()

    def deactivate(self, rank: int) -> None:
        """Goes on without a rank that this one waits for in vain: `go_on`, where the others do not wait for it any more."""
        self._goes_on().deactivate(whole("rank", rank, 0, self._ranks - 1))

    def go_on(self) -> list[int]:
        """Goes on after `Aborted` with the ranks that call it, which all ranks that can do: returns those without which it goes on
        from here on.

        Processes that are gone are not waited for. Kernels of the others find zeros in place of what such a rank would have sent.
        Operations and graphs stay as they are, and what kernels had not finished is lost, as by `reset`. A rank that comes too late
        is refused.
        """
        return self._goes_on().go_on()

    def replace(self, rank: int) -> None:
        """Lets a new process take the place of a rank without which the world goes on.

        All active ranks call it when nothing of theirs runs, and so does the new process, whose world is `World.in_place_of`. They
        wait `form_timeout` seconds for it. Operations and graphs stay as they are, and a process that had the rank before reaches
        nothing any more. After an error `go_on` lets the others run again.
        """
        self._goes_on().replace(whole("rank", rank, 0, self._ranks - 1))

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that the world goes on with: all of them at first."""
        core = self._core
        return tuple(core.active()) if isinstance(core, _core.GpuWorld) else tuple(range(self._ranks))

    def _goes_on(self) -> _core.GpuWorld:
        """A world that can go on without ranks."""
        if not isinstance(self._core, _core.GpuWorld):
            raise InvalidArgument("world", "simulated", "one of GPUs: simulated ranks do not leave")
        return self._core

    def leave(self) -> None:
        """Leaves the world; all ranks do, with operations and their tensors dropped before. A simulated world needs none of it."""
        if isinstance(self._core, _core.GpuWorld):
            self._core.leave()

    def __repr__(self) -> str:
        ranks = "rank" if self._ranks == 1 else "ranks"
        return f"<World of {self._ranks} {'simulated ' if self.is_simulated else ''}{ranks}>"


class _Formed(NamedTuple):
    """How a world of several processes was formed."""

    ranks: int
    #: Address and secret.
    meeting: tuple[str, str]
    #: Wait budget and form timeout.
    times: tuple[float, float]
    #: Whether SMs and GPUs are shared, and launches at once.
    shared: tuple[bool, bool, int]

    def to_ticket(self) -> bytes:
        return json.dumps([_core.__version__, *self]).encode("ascii")

    @classmethod
    def of_ticket(cls, ticket: Any) -> _Formed:
        """Reads a ticket. An error shows nothing of it: it holds a secret."""
        allowed = f"what World.ticket() returns in peerwarp {_core.__version__}"
        if not isinstance(ticket, bytes):
            raise InvalidArgument("ticket", type(ticket).__name__, f"bytes: {allowed}")
        try:
            version, ranks, (address, secret), (budget, timeout), (sms, gpus, at_once) = json.loads(ticket)
            if version != _core.__version__ or not isinstance(secret, str) or not re.fullmatch(r"127\.0\.0\.1:[0-9]{1,5}", address):
                raise ValueError
            times = seconds_of("wait_budget", budget), seconds_of("form_timeout", timeout)
            shared = flag("share_sms", sms), flag("share_gpus", gpus), whole("launches_at_once", at_once, 1, 16)
            return cls(whole("ranks", ranks, 2, 64), (address, secret), times, shared)
        except (ValueError, TypeError, RecursionError):
            raise InvalidArgument("ticket", f"{len(ticket)} other bytes", allowed) from None


def runs_on(world: Any) -> _core.SimulatedWorld | Device:
    """What operations of a world run on: simulated ranks, or this process's GPU."""
    if not isinstance(world, World):
        made = "World.simulated(ranks), World.on_gpu() or World.from_torch()"
        raise InvalidArgument("world", type(world).__name__, f"a World: {made}")
    if isinstance(world._core, _core.SimulatedWorld):
        return world._core
    return Device(world._core, world._rank or 0, world._ranks, world._gpu)


def whole(field: str, value: Any, low: int, high: int) -> int:
    """A whole number within limits."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise InvalidArgument(field, value, f"a whole number from {low} to {high}")
    return number


def flag(field: str, value: Any) -> bool:
    """True or False. A text such as "no" is neither."""
    # A bool of NumPy is another type.
    if isinstance(value, bool) or type(value).__name__ in {"bool", "bool_"}:
        return bool(value)
    raise InvalidArgument(field, value, "True or False")


def _torch_distributed() -> tuple[Any, Any]:
    """PyTorch, and `torch.distributed` with a process group."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise MissingPackage("World.from_torch needs PyTorch (pip install torch); World.simulated does not") from error
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidArgument("group", "no process group", "a group of torch.distributed.init_process_group")
    return torch, dist


def compilers() -> list[str]:
    """Folders of the NVRTC that PyTorch's wheels bring."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    return [os.path.join(place, "cu13", "lib") for place in places or []]


#: Bytes of a message between ranks: its length in four bytes, a list of texts as JSON, and zeros.
_MESSAGE = 16384


class _Group:
    """Messages between the ranks of a process group. Anybody who reaches the group can send: a message is bytes, never a pickle."""

    def __init__(self, torch: Any, dist: Any, group: Any, ranks: int, rank: int) -> None:
        self._torch, self._dist, self._group, self.ranks, self._rank = torch, dist, group, ranks, rank
        backends = str(dist.get_backend_config(group))
        # NCCL takes tensors of a GPU alone; the others take those of the CPU.
        self._device = "cpu" if "cpu:" in backends else "cuda"

    def of_all(self, own: list[str]) -> list[list[str]]:
        """The messages of all ranks."""
        into = [self._tensor(bytes(_MESSAGE)) for _ in range(self.ranks)]
        self._dist.all_gather(into, self._tensor(_encoded(own)), group=self._group)
        return [_decoded(rank, bytes(tensor.tolist())) for rank, tensor in enumerate(into)]

    def of_first(self, own: list[str]) -> list[str]:
        """The message of rank 0."""
        first = 0 if self._group is None else self._dist.get_global_rank(self._group, 0)
        tensor = self._tensor(_encoded(own))
        self._dist.broadcast(tensor, src=first, group=self._group)
        return _decoded(0, bytes(tensor.tolist()))

    def _tensor(self, message: bytes) -> Any:
        return self._torch.tensor(list(message), dtype=self._torch.uint8, device=self._device)


def _encoded(texts: list[str]) -> bytes:
    """A message. Texts that are too long are cut."""
    # A character takes six bytes at most, as an escape.
    most = (_MESSAGE - 64) // (6 * max(len(texts), 1))
    body = json.dumps([text[:most] for text in texts], ensure_ascii=False).encode(errors="replace")
    return (len(body).to_bytes(4, "little") + body).ljust(_MESSAGE, b"\0")


def _decoded(rank: int, message: bytes) -> list[str]:
    """The texts of a rank's message."""
    length = int.from_bytes(message[:4], "little")
    try:
        texts = json.loads(message[4 : 4 + length]) if len(message) == _MESSAGE and length <= _MESSAGE - 4 else None
        # Half of a surrogate pair is in no text that a rank sends, and later calls refuse it with an error of Python.
        json.dumps(texts, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _malformed(rank, message[:40])
    return texts


def _malformed(rank: int, found: Any) -> InvalidArgument:
    return InvalidArgument(f"message of rank {rank} in the group", found, "of this version of peerwarp, on all ranks")


def _agree(group: _Group, own: Callable[[], T]) -> T:
    """What `own` yields. If it raises on one rank, all ranks raise: else they would wait for that one."""
    result, error = None, None
    try:
        result = own()
    except PeerwarpError as raised:
        error = raised
    kind = "" if error is None else "driver" if isinstance(error, NoDriver) else "other"
    told = group.of_all([_machine(), kind, "" if error is None else str(error)])
    if error is not None:
        raise error
    for rank, message in enumerate(told):
        if len(message) != 3 or message[1] not in {"", "driver", "other"}:
            raise _malformed(rank, message)
        machine, kind, reason = message
        if kind:
            raise (NoDriver if kind == "driver" else PeerwarpError)(f"rank {rank}: {reason}")
        if machine != told[0][0]:
            raise InvalidArgument("group", f"ranks 0 and {rank} on two machines", "ranks of one machine")
    return cast("T", result)


def _machine() -> str:
    """What tells a machine from others, while it is up."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def seconds_of(field: str, value: Any) -> float:
    """A time in seconds."""
    number = float(value) if isinstance(value, (int, float)) else math.nan
    if not 0 < number < 1e6:
        raise InvalidArgument(field, value, "seconds: more than 0, less than a million")
    return number


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _gpu_number(device: Any) -> int:
    """The number of this rank's GPU among those that the process sees."""
    if device is None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            return int(torch.cuda.current_device())
        given = os.environ.get("LOCAL_RANK", "0")
        return whole("LOCAL_RANK", int(given) if given.isdecimal() else given, 0, 63)
    # A torch.device has its number as an attribute; of a text that is a method.
    number = getattr(device, "index", None)
    return whole("device", number if isinstance(number, int) else device, 0, 63)
