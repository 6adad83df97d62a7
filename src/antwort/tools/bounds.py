"""What a call may take: values, and who may know better than the default. Nothing here waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Meta

from antwort.tools.base import ToolDefinition
from antwort.tools.local import LONGEST_TIME

_Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=LONGEST_TIME)]
_Count: TypeAlias = Annotated[int, Meta(ge=1)]


class ToolBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a single tool, where it is otherwise than for all."""

    timeout: _Seconds | None = None
    """How long a call may take; unset, as for all."""
    concurrency: _Count | None = None
    """How many calls of it run at once; unset, as for all."""
    output_bytes: _Count | None = None
    """How much text of a result is kept; unset, as for all."""
    arguments_bytes: _Count | None = None
    """How long its arguments may be; unset, as for all."""
    parallel: bool = True
    """Off, its calls never overlap, whoever makes them."""

    def __post_init__(self) -> None:
        _check_counts(self.concurrency, self.output_bytes, self.arguments_bytes)
        _check_times(self.timeout)


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of a tool may take. Times are in seconds."""

    timeout: _Seconds = 60.0
    """How long a call may take, from the moment it has its place among the `concurrency`."""
    timeouts: Mapping[str, _Seconds] = {}
    """For single tools, by their own name; it goes before the tool's own wish, and that before `timeout`."""
    concurrency: _Count = 16
    """How many calls of the same tool run at once; the next one waits, and other tools do not wait for it."""
    total: _Count = 64
    """How many calls of one toolset, one server or one executor run at once, of all its tools."""
    output_bytes: _Count = 256 * 1024
    """How much text of a result is kept; what is beyond is cut off."""
    media_bytes: _Count = 10 * 1024 * 1024
    """How much a result may hold of images, files and videos."""
    arguments_bytes: _Count = 256 * 1024
    """How long the arguments of a call may be; one with longer ones is answered with an error."""
    check_arguments: bool = True
    """Hold the arguments against the tool's schema before it is run."""
    grace: _Seconds = 0.5
    """How long a call that is told to stop may take to tidy up before it is left behind."""
    tools: Mapping[str, ToolBounds] = {}
    """Single tools, by their own name, otherwise than the rest."""

    def __post_init__(self) -> None:
        _check_counts(self.concurrency, self.total, self.output_bytes, self.media_bytes, self.arguments_bytes)
        _check_times(self.timeout, *self.timeouts.values(), self.grace)

    def timeout_of(self, name: str, wish: float | None = None) -> float:
        """The operator's word on the tool goes before the tool's own wish, and that before what holds for all."""
        bounds = self.tools.get(name)
        own = None if bounds is None else bounds.timeout
        if own is None:
            own = self.timeouts.get(name, wish)
        return self.timeout if own is None else own

    def concurrency_of(self, name: str) -> int:
        bounds = self.tools.get(name)
        return self.concurrency if bounds is None else bounds.concurrency or self.concurrency

    def output_bytes_of(self, name: str) -> int:
        bounds = self.tools.get(name)
        return self.output_bytes if bounds is None else bounds.output_bytes or self.output_bytes

    def arguments_bytes_of(self, name: str) -> int:
        bounds = self.tools.get(name)
        return self.arguments_bytes if bounds is None else bounds.arguments_bytes or self.arguments_bytes

    def may_overlap(self, name: str) -> bool:
        bounds = self.tools.get(name)
        return bounds is None or bounds.parallel


@runtime_checkable
class Timed(Protocol):
    """An executor whose tools may ask for a time limit of their own."""

    def timeout_of(self, tool: ToolDefinition) -> float | None: ...


@runtime_checkable
class Bounded(Protocol):
    """An executor whose tools have limits of their own, such as one that stands for several servers."""

    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:
        """What holds for this tool, whole; None: what holds for all executors."""
        ...


@runtime_checkable
class Prompt(Protocol):
    """An executor whose calls always end when they are cancelled, so that none of them has to be left behind."""

    @property
    def ends_when_told(self) -> Literal[True]: ...


def holds_to_its_word(executor: object) -> bool:
    """Whether an executor says of a tool what it said of it before, so that it need not be asked each time. The class
    itself says so, by `holds_to_its_word = True`: one that is derived from it may know otherwise.
    """
    return vars(type(executor)).get("holds_to_its_word") is True


def _check_counts(*counts: int | None) -> None:
    if any(count is not None and count < 1 for count in counts):
        raise ValueError("concurrency and sizes must be at least 1")


def _check_times(*times: float | None) -> None:
    if any(seconds is not None and seconds <= 0 for seconds in times):
        raise ValueError("a time limit must be more than 0 seconds")
