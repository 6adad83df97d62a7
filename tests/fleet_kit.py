"""Backends for the tests of a fleet: they answer, fail or are away as they are told, and time stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeAlias

from antwort.api.responses import Model
from antwort.errors import AntwortError, BackendUnavailable
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest, Delta, Finished, TextDelta
from antwort.providers.fleet import Fleet, Member
from antwort.providers.routing import Rules

HEADERS: list[Delta] = []
"""The empty batch: the backend has answered, and said nothing yet."""
Step: TypeAlias = list[Delta] | AntwortError | asyncio.Event


class FakeBackend:
    """Plays its scripts in turn; when they are over it says its own name. While it `is_away`, it cannot be reached."""

    def __init__(
        self,
        name: str = "a",
        *scripts: Sequence[Step],
        models: Sequence[str] = ("m",),
        capabilities: Capabilities = Capabilities(),  # noqa: B008 - a frozen value
    ) -> None:
        self.name = name
        self.scripts = list(scripts)
        self.listed = list(models)
        self.requests: list[ChatRequest] = []
        self.looks = self.checks = self.under_way = 0
        self.is_away = self.is_closed = False
        self.list_fails: AntwortError | None = None
        self.check_fails = False
        self.gate: asyncio.Event | None = None
        """What the list of models waits for."""
        self._capabilities = capabilities

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        self.requests.append(request)
        self._be_there()
        said: list[Step] = [HEADERS, [TextDelta(self.name)], [Finished("stop")]]
        self.under_way += 1
        try:
            for step in self.scripts.pop(0) if self.scripts else said:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, AntwortError):
                    raise step
                else:
                    yield step
        finally:
            self.under_way -= 1

    async def models(self) -> Sequence[Model]:
        self.looks += 1
        if self.gate is not None:
            await self.gate.wait()
        self._be_there()
        if self.list_fails is not None:
            raise self.list_fails
        return [Model(id=name, owned_by=self.name) for name in self.listed]

    def capabilities(self, model: str) -> Capabilities:
        return self._capabilities

    async def check(self) -> None:
        self.looks += 1
        self.checks += 1
        self._be_there()
        if self.check_fails:
            raise BackendUnavailable(f"{self.name} cannot be reached.")

    async def close(self) -> None:
        self.is_closed = True

    def _be_there(self) -> None:
        if self.is_away:
            raise BackendUnavailable(f"{self.name} cannot be reached.")


class Time:
    """A clock that stands still, and timers that go off when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, call))
        return self.timers[-1]

    @property
    def pauses(self) -> list[float]:
        """How long the timers have still to run."""
        return sorted(timer.at - self.now for timer in self.timers if not timer.is_cancelled)

    def pass_by(self, seconds: float) -> None:
        """What was to happen in that time is set going."""
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.at <= self.now]:
            self.timers.remove(timer)
            if not timer.is_cancelled:
                timer.call()


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def fleet_of(*backends: FakeBackend, time: Time | None = None, rules: Rules = Rules(), **more: Any) -> Fleet:  # noqa: B008
    """A fleet whose backends have their models set, so that nobody needs to be asked for them."""
    time = time or Time()
    members = [member_of(backend, time, models=backend.listed) for backend in backends]
    return Fleet(members, rules, clock=time, later=time.later, **more)


def member_of(backend: FakeBackend, time: Time, **more: Any) -> Member:
    return Member(backend.name, backend, failures=3, open_for=10.0, clock=time, **more)


def open_circuit(member: Member, time: Time, model: str = "m") -> None:
    """As connection failures do."""
    for _ in range(3):
        time.now += 1.0  # what fails within a second of another failure does not count
        member.record_failure(BackendUnavailable("gone"), model, None)


def asking(model: str = "m", **fields: Any) -> ChatRequest:
    return ChatRequest(model=model, messages=[ChatMessage(role="user", content="Hi")], **fields)


async def batches(fleet: Fleet, model: str = "m") -> list[list[Delta]]:
    return [batch async for batch in fleet.infer(asking(model))]


async def said(fleet: Fleet, model: str = "m") -> str:
    return "".join(d.text for batch in await batches(fleet, model) for d in batch if isinstance(d, TextDelta))
