"""Turns of one conversation that come, fail, leave and are cancelled at any moment: what is there in the end is what
the turns that came to something said, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeAlias

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.responses import Response
from antwort.engine.engine import Engine
from antwort.engine.settings import OnDisconnect
from antwort.errors import AntwortError, BackendUnavailable
from antwort.identity import ANONYMOUS
from antwort.providers.base import ChatRequest, Delta, Finished, TextDelta
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider
from conversation_kit import begun, said, words
from engine_kit import ask, sent_messages
from plan_kit import STEADY


class Turn(msgspec.Struct, frozen=True):
    """What one request is, and what becomes of it."""

    is_streamed: bool
    is_stored: bool
    has_key: bool
    outlives_client: bool
    fails: bool
    waits: bool
    """For a word of the test, in the middle of its answer."""


Move: TypeAlias = Turn | tuple[str, int]
TURNS = st.builds(Turn, *6 * [st.booleans()])
MOVES = st.lists(
    st.one_of(TURNS, st.tuples(st.sampled_from(["cancel", "stop", "go", "pause"]), st.integers(0, 30))), max_size=25
)


class Echo(ScriptedProvider):
    """Says how many messages it got, to which question; the question is the number of a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Turn] = []
        self.go: list[asyncio.Event] = []
        self.under_way = 0

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        assert self.under_way == 0, "one at a time"
        self.under_way += 1
        messages = sent_messages(request)
        turn = int(messages[-1][1])
        try:
            yield [TextDelta(f"{turn}:")]
            if self.turns[turn].waits:
                await self.go[turn].wait()
            if self.turns[turn].fails:
                raise BackendUnavailable("Not now.")
            yield [TextDelta(f"{len(messages)}"), Finished("stop")]
        finally:
            self.under_way -= 1


class Scene:
    def __init__(self) -> None:
        self.provider, self.store = Echo(), MemoryStore()
        self.engine = Engine(self.provider, store=self.store)
        self.tasks: list[asyncio.Task[Response]] = []
        self.conversation = ""

    async def play(self, moves: list[Move]) -> None:
        async with self.engine:
            self.conversation = await begun(self.engine)
            for move in moves:
                if isinstance(move, Turn):
                    self._come(move)
                elif move[0] == "pause" or not self.tasks:
                    await _pause(move[1])
                else:
                    self._disturb(*move)
            await self._end()

    def _come(self, turn: Turn) -> None:
        self.provider.turns.append(turn)
        self.provider.go.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._take(len(self.tasks), turn)))

    async def _take(self, number: int, turn: Turn) -> Response:
        request = ask(f"{number}", conversation=self.conversation, store=turn.is_stored, stream=turn.is_streamed)
        key = f"key-{number}" if turn.has_key else None
        on_disconnect: OnDisconnect = "continue" if turn.outlives_client else "cancel"
        async with await self.engine.start(request, key=key, on_disconnect=on_disconnect) as run:
            if not turn.is_streamed:
                return await run.result()
            await run.answered()
            numbers = [number async for number, _ in run.events()]
            assert numbers == [*range(len(numbers))], "all events"
            return run.response

    def _disturb(self, move: str, which: int) -> None:
        if move == "cancel":
            self.tasks[which % len(self.tasks)].cancel()
        elif move == "go":
            self.provider.go[which % len(self.tasks)].set()
        elif (running := [*self.engine.live_runs.values()]) and which % 2:
            running[0].stop(BackendUnavailable("Somebody has pulled the plug."))

    async def _end(self) -> None:
        for event in self.provider.go:
            event.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await asyncio.gather(*(run.wait() for run in [*self.engine.live_runs.values()]))  # whose clients have left
            await self.engine.idempotency_keys.close()
        assert len(self.engine.conversation_locks) == 0
        await self._check()

    async def _check(self) -> None:
        told = words(await said(self.store, self.conversation))
        numbers = [int(line.removeprefix("user: ")) for line in told[::2]]
        # Whether a key is new is asked first: what comes just behind may be in the queue before it.
        unkeyed = [number for number in numbers if not self.provider.turns[number].has_key]
        assert unkeyed == sorted(unkeyed), "in the order in which they came"
        assert told[1::2] == [f"assistant: {number}:{2 * at + 1}" for at, number in enumerate(numbers)]
        assert len(numbers) == len({*numbers}), "none twice"
        for number, task in enumerate(self.tasks):
            if task.cancelled():
                continue  # its run may have ended before it was told
            if task.exception() is not None:
                assert isinstance(task.exception(), AntwortError)
                assert number not in numbers
                continue
            response = task.result()
            assert (response.status == "completed") == (number in numbers), "what its client was told, and no other"
            assert not response.store or await self.store.get(ANONYMOUS, response.id) == response


async def _pause(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


@STEADY
@given(MOVES)
def test_a_conversation_is_what_its_turns_said_one_after_the_other(moves: list[Move]) -> None:
    asyncio.run(Scene().play(moves))
