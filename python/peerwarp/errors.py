"""What Peerwarp raises: every error is a `PeerwarpError`."""

from __future__ import annotations


class PeerwarpError(Exception):
    """Something did not work; the text says what."""


class InvalidArgument(PeerwarpError, ValueError):
    """An argument that is not allowed.

    Attributes:
        field: which one, as the caller knows it: `"ids[1]"`.
        value: what it was, in words.
        allowed: what it may be, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, str(value), allowed
        super().__init__(f"{field} = {self.value}: not allowed\n  allowed: {allowed}")

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str, str, str]]:
        return type(self), (self.field, self.value, self.allowed)


class Finding:
    """One thing that the checker found.

    Attributes:
        kind: its name in reports: `"data-race"`.
        message: what happened, in plain words.
        line: the kernel author's file and line, `"src/swap.rs:12:9"`; `None` for the host.
        rank: the rank that it happened to.
        at: who it happened to: line, rank, kernel, role, block and what it did there.
        other: the other side, where there is one.
        buffer: the buffer, if it concerns one.
        elements: the first element and the one after the last.
        chain: of a deadlock, who waits for whom.
        times: how often it happened, at other elements, ranks or blocks.
        is_cause: whether it is a cause; else it may be what follows from one.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        line: str | None,
        rank: int,
        at: str,
        other: str | None,
        buffer: str | None,
        elements: tuple[int, int] | None,
        chain: tuple[str, ...],
        times: int,
        is_cause: bool,
        text: str,
    ) -> None:
        self.kind = kind
        self.message = message
        self.line = line
        self.rank = rank
        self.at = at
        self.other = other
        self.buffer = buffer
        self.elements = elements
        self.chain = chain
        self.times = times
        self.is_cause = is_cause
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Finding {self.kind} at {self.line or 'the host'}>"


class RaceFound(PeerwarpError):
    """The checker found something wrong in a simulated run: a race, a lost signal, a deadlock.

    Attributes:
        findings: what it found, causes first.
        seed: the seed of the schedule that showed it.
    """

    def __init__(self, text: str, findings: tuple[Finding, ...] = (), seed: int = 0) -> None:
        super().__init__(text)
        self.findings, self.seed = findings, seed


class Aborted(PeerwarpError):
    """A wait on a GPU ran out of time, and all ranks left their kernels. Only worlds of GPUs raise it.

    Attributes:
        rank: the rank that waited.
        peer: the rank that did not signal, if this process knows.
        flag: the flag array that was waited for.
        epoch: the epoch that was waited for.
        kernel: the kernel that waited.
        line: the line of the wait in the kernel author's source.
    """

    def __init__(
        self,
        text: str,
        rank: int = 0,
        peer: int | None = None,
        flag: str | None = None,
        epoch: int | None = None,
        kernel: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(text)
        self.rank, self.peer, self.flag = rank, peer, flag
        self.epoch, self.kernel, self.line = epoch, kernel, line


class NoDriver(PeerwarpError):
    """There is no driver, or no GPU that can be used; the text says what is missing and how to get it."""


class MissingPackage(PeerwarpError):
    """A Python package is needed and not installed."""
