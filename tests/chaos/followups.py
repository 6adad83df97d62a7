"""Clients of the chaos suite whose stories take several responses: tool loops in the foreground, continued where they
were cut, and paused turns, which are continued, declined and cancelled in many ways.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from chaos.client import BROKEN, RESPONSES, UNDER_WAY, Caller, Refused, Seen, events_of
from chaos.model import MODEL
from chaos.story import CLIENTS, FUNCTIONS, LABEL, Scene, opening
from raw_http import connected

PATIENCE = 60.0
"""Seconds that a client waits for an answer that comes whole."""
_POLLS = 0.5
_GO_ON = "Go on."
_STOP = "Stop! Do nothing of that."

Move: TypeAlias = Literal["result", "late result", "hasty", "message", "none", "allowed", "cancel"]
"""What a client does about a paused turn. `result` brings the result of its own call and so continues the turn; a late
one continues the last follow-up instead. `hasty` is a `result` whose client leaves before the answer. `message` brings
only a new message. `none` and `allowed` bring the result, with `tool_choice: none` and with an `allowed_tools` that
names only the client's function. `cancel` cancels the paused response."""

DECLINES = frozenset[Move]({"message", "none", "allowed", "cancel"})

_SPOKEN = frozenset(
    {
        "response.output_text.delta",
        "response.mcp_call_arguments.delta",
        "response.function_call_arguments.delta",
    }
)
"""Events of what the model itself writes."""

Plan: TypeAlias = tuple[tuple[Move, ...], ...]
"""One step after the other; the moves of a step are made at the same moment."""

PLANS: tuple[Plan, ...] = (
    (("result",), ("result",), ("message",), ("result",)),
    (("result", "result", "result"),),
    (("hasty",), ("result",), ("result",)),
    (("hasty", "hasty", "result"), ("result",)),
    (("result", "message"), ("result",)),
    (("message",), ("result",)),
    (("message",), ("late result",)),
    (("none",), ("result", "result")),
    (("allowed",), ("result",)),
    (("cancel",), ("result",)),
)


class Chain(msgspec.Struct, kw_only=True):
    """What a client knows of its story."""

    story: int
    scene: Scene
    plan: Plan = ()
    """Of a pause."""
    paused: str = ""
    """The id of the response that waits for the client."""
    port: int = 0
    """Of the server that was asked for its last stream."""
    is_streaming: bool = False
    """Whether that stream is under way."""
    streams: dict[str, list[Seen]] = {}
    """The responses by their ids, in the order in which they became known, each with what was seen of its stream."""
    final: dict[str, bytes] = {}
    """Each as it is stored in the end."""
    is_done: bool = False
    """Whether the story came to its end."""
    is_given_up: bool = False
    """Whether a response was lost of which the client does not know the id."""
    breaks: Counter[str] = msgspec.field(default_factory=Counter)
    """What came between, by its name."""
    troubles: list[str] = []
    """What no client should see."""

    def is_in_second_turn(self, port: int) -> bool:
        """Whether a loop is in the second turn of its first response, in a stream of that server. Its first turn is on
        record, and a third one is still to come. Each turn begins with words, and ends with calls.
        """
        if self.scene != "loop" or not self.is_streaming or self.port != port or len(self.streams) != 1:
            return False
        [seen] = self.streams.values()
        is_text = (event.type == "response.output_text.delta" for event in seen if event.type in _SPOKEN)
        return [is_words for is_words, _ in groupby(is_text)] in ([True, False, True], [True, False, True, False])

    @property
    def is_declined(self) -> bool:
        """Whether the first that a server hears about a paused turn is that its calls are declined."""
        return bool(self.plan) and DECLINES.issuperset(self.plan[0])


class Ended(NamedTuple):
    response_id: str
    status: str


async def tell(chain: Chain, ports: Sequence[int], seed: int) -> None:
    """Tell the story to its end, however long that takes. The chain is filled in as it goes on."""
    fate = random.Random(f"{seed}.{chain.story}")
    teller = _Loop if chain.scene == "loop" else _Pause
    try:
        await teller(chain, ports, fate, f"{seed}-{chain.story}").run()
    except Refused as refused:
        chain.troubles.append(str(refused))


async def look_again(chain: Chain, ports: Sequence[int], seed: int) -> None:
    """Retrieve every response of the chain when nothing goes wrong any more, until it has ended: what a process left
    that was killed last is ended only after its lease.
    """
    teller = _Teller(chain, ports, random.Random(f"{seed}.{chain.story}.again"), "")
    try:
        for response_id in chain.streams:
            while True:
                chain.final[response_id] = await teller.retrieve(response_id)
                if msgspec.json.decode(chain.final[response_id])["status"] not in UNDER_WAY:
                    break
                await asyncio.sleep(_POLLS)
    except Refused as refused:
        chain.troubles.append(str(refused))


class _Teller(Caller):
    passing = frozenset({409, 429})  # as the SDKs do

    def __init__(self, chain: Chain, ports: Sequence[int], fate: random.Random, key: str) -> None:
        super().__init__(ports, fate, chain.breaks)
        self._chain, self._key = chain, key

    async def retrieve(self, response_id: str) -> bytes:
        while (reply := await self._attempt(self._ask("GET", f"{RESPONSES}/{response_id}"))) is None:
            pass
        return reply.body

    async def _settled(self, response_id: str) -> Ended:
        """Poll until the response has ended."""
        while (status := msgspec.json.decode(await self.retrieve(response_id))["status"]) in UNDER_WAY:  # noqa: ASYNC110 - a client that polls
            await asyncio.sleep(_POLLS)
        return Ended(response_id, status)

    async def _whole(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Ended:
        """Make a response whose answer comes whole."""
        reply = await self._ask("POST", RESPONSES, dict(body), headers, PATIENCE)
        made = msgspec.json.decode(reply.body)
        self._chain.streams.setdefault(made["id"], [])
        return Ended(made["id"], made["status"])

    async def _streamed(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Ended:
        """Make a response that is streamed. What was seen is kept, also where it breaks off."""
        seen: list[Seen] = []
        self._chain.port = self._port()
        try:
            async with connected(self._chain.port) as wire:
                self._chain.is_streaming = True
                wire.send("POST", RESPONSES, {**body, "stream": True}, headers)
                async with aclosing(events_of(wire)) as events:
                    async for event in events:
                        seen.append(event)
                        if len(seen) == 1:
                            self._chain.streams[_response(event)["id"]] = seen
        finally:
            self._chain.is_streaming = False
        response = _response(seen[-1])
        return Ended(response["id"], response["status"])

    def _request(self, **fields: Any) -> dict[str, Any]:
        return {"model": MODEL, "metadata": {"story": str(self._chain.story)}, "tools": _TOOLS, **fields}


def _response(event: Seen) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(event.data)["response"]
    return found


_SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
_TOOLS: list[dict[str, Any]] = [
    {"type": "mcp", "server_label": LABEL},
    *({"type": "function", "name": name} for name in FUNCTIONS),
]
_WITH_CLIENTS = [*_TOOLS, {"type": "function", "name": CLIENTS, "parameters": _SCHEMA}]


class _Loop(_Teller):
    """Makes a response in the foreground; where it was cut, continues it by its id."""

    async def run(self) -> None:
        chain, fate = self._chain, self._fate
        is_streamed = fate.random() < 0.6
        # A client that is told no id cannot know what was done, unless its request has a key.
        has_key = not is_streamed or fate.random() < 0.3
        asked = self._request(input=opening(chain.story, chain.scene))
        while True:
            headers = {"idempotency-key": f"{self._key}-{len(chain.streams)}"} if has_key else None
            response_id = await self._made(asked, headers, is_streamed=is_streamed)
            if response_id is None:
                chain.is_given_up = True
                return
            ended = await self._settled(response_id)
            if ended.status not in ("failed", "cancelled"):
                chain.is_done = True
                return
            asked = self._request(input=_GO_ON, previous_response_id=response_id)

    async def _made(
        self, asked: Mapping[str, Any], headers: Mapping[str, str] | None, *, is_streamed: bool
    ) -> str | None:
        """The id of a response, as soon as it is known and the connection is over; None where it cannot be known."""
        known = len(self._chain.streams)
        while True:
            breaks = self._breaks.total() - self._breaks[ConnectionRefusedError.__name__]
            ended = await self._attempt((self._streamed if is_streamed else self._whole)(asked, headers))
            if ended is not None:
                return ended.response_id
            if len(self._chain.streams) > known:
                return next(reversed(self._chain.streams))
            was_heard = self._breaks.total() - self._breaks[ConnectionRefusedError.__name__] > breaks
            if was_heard and headers is None:
                return None


class _Pause(_Teller):
    """Makes a response that waits for the client, and does about it what the plan says."""

    def __init__(self, chain: Chain, ports: Sequence[int], fate: random.Random, key: str) -> None:
        super().__init__(chain, ports, fate, key)
        self._latest = ""
        """The id of the last follow-up that has completed."""
        self._call = ""
        """The id of the client's call."""

    async def run(self) -> None:
        while not await self._pause():
            pass
        for moves in self._chain.plan:
            await asyncio.gather(*(self._move(move) for move in moves))
        self._chain.is_done = True

    async def _pause(self) -> bool:
        """Whether the turn is paused. A try that was cut has run nothing: it is made again."""
        is_background = self._fate.random() < 0.3
        opened = opening(self._chain.story, self._chain.scene)
        asked = self._request(input=opened, tools=_WITH_CLIENTS, background=is_background)
        made = await self._attempt(self._whole(asked))
        if made is None or (await self._settled(made.response_id)).status != "requires_action":
            return False
        output = msgspec.json.decode(await self.retrieve(made.response_id))["output"]
        self._call = next(item["call_id"] for item in output if item.get("name") == CLIENTS)
        self._chain.paused = self._latest = made.response_id
        return True

    async def _move(self, move: Move) -> None:
        match move:
            case "hasty":
                await self._leave(self._follow_up(move))
            case "cancel":
                while not await self._attempt(self._ask("POST", f"{RESPONSES}/{self._chain.paused}/cancel")):
                    pass
            case _:
                await self._insist(self._follow_up(move))

    async def _insist(self, asked: Mapping[str, Any]) -> None:
        """Send the same request until a response has completed, as SDKs and their users do, and without a key."""
        make = self._streamed if self._fate.random() < 0.5 else self._whole
        while True:
            ended = await self._attempt(make(asked))
            if ended is not None and ended.status == "completed":
                self._latest = ended.response_id
                return
            if ended is not None and ended.status != "failed":
                self._chain.troubles.append(f"{ended.response_id}: {ended.status}")
                return

    async def _leave(self, asked: Mapping[str, Any]) -> None:
        """Send a request, and hang up before it is answered."""
        with suppress(*BROKEN):
            async with connected(self._port()) as wire:
                wire.send("POST", RESPONSES, {**asked, "stream": True})
                await asyncio.sleep(self._fate.uniform(0.1, 1.0))
                wire.vanish()

    def _follow_up(self, move: Move) -> dict[str, Any]:
        parent = self._latest if move == "late result" else self._chain.paused
        result = {"type": "function_call_output", "call_id": self._call, "output": "Yes."}
        asked = self._request(previous_response_id=parent, tools=_WITH_CLIENTS, input=[result])
        match move:
            case "message":
                return {**asked, "input": _STOP}
            case "none":
                return {**asked, "tool_choice": "none"}
            case "allowed":
                only = [{"type": "function", "name": CLIENTS}]
                return {**asked, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": only}}
            case _ if self._fate.random() < 0.5:  # what the paused response had holds
                return {name: value for name, value in asked.items() if name != "tools"}
            case _:
                return asked
