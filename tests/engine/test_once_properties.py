"""Whole conversations: whatever clients that keep their history themselves send back of a server's calls and leave out,
and however often those that go on by the id of the last response try again, no call is run twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antwort.api.items import FunctionCall, FunctionCallOutput
from antwort.api.requests import CreateRequest
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.errors import BackendUnavailable
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say, think
from antwort.tools.base import ToolCall, ToolContext
from engine_kit import CLOCK, SERVER, ask, engine_of, sent

Plain: TypeAlias = dict[str, Any]
Sends: TypeAlias = Callable[[list[Plain]], list[Plain]]
"""What a client sends of all that it was shown and said so far."""

TOOLS = [SERVER, CLOCK]
_KEPT_BY_PYDANTIC = ("type", "id", "server_label", "name", "arguments")


# ---- clients ----


def faithful(items: list[Plain]) -> list[Plain]:
    return items


def by_call_id(items: list[Plain]) -> list[Plain]:
    """As the Agents SDK: of calls that go by one id, with the same name and arguments, the first is kept."""
    seen: set[object] = set()
    kept = []
    for item in items:
        identity = (item.get("call_id") or item.get("id"), item.get("name"), item.get("arguments"))
        if item.get("type") in ("mcp_call", "function_call"):
            if identity in seen:
                continue
            seen.add(identity)
        kept.append(item)
    return kept


def by_item_id(items: list[Plain]) -> list[Plain]:
    """As pydantic-ai: what a server's call came to is for the server to know."""
    return [_bare(item) if item.get("type") == "mcp_call" else item for item in items]


def _bare(item: Plain) -> Plain:
    arguments = json.dumps(json.loads(item["arguments"]))
    return {**{key: item[key] for key in _KEPT_BY_PYDANTIC}, "arguments": arguments, "output": None, "error": None}


def without_runs(items: list[Plain]) -> list[Plain]:
    """What shows a run is dropped: only the call as it was asked for comes back."""
    return [item for item in items if not str(item.get("id")).endswith("_run")]


def without_ids(items: list[Plain]) -> list[Plain]:
    return [{key: value for key, value in item.items() if key != "id"} for item in items]


def without_lists_and_thoughts(items: list[Plain]) -> list[Plain]:
    return [item for item in items if item.get("type") not in ("mcp_list_tools", "reasoning")]


WHOLE: list[Sends] = [faithful, by_call_id, without_lists_and_thoughts]
LOSSY: list[Sends] = [by_item_id, without_runs, without_ids]


# ---- a conversation ----

_steps = st.lists(
    st.lists(st.sampled_from(["server", "client", "think", "say"]), min_size=1, max_size=4), min_size=1, max_size=6
)
FAILS = ["fail"]
_mixed = st.permutations(["server", "client", "server"])
_shaky = st.lists(st.one_of(_mixed, st.just(FAILS), st.just(["say"]), st.just(["server"])), min_size=2, max_size=8)


def script_of(steps: list[list[str]]) -> Iterator[Answer]:
    """Each call of the server has a key of its own, to be counted by."""
    for i, parts in enumerate(steps):
        if parts == FAILS:
            yield answer(BackendUnavailable("Not now."))
            continue
        said = {"client": call("clock"), "think": think("Hm."), "say": say("Well.")}
        yield answer(*[said.get(part) or call("lookup", key=f"{i}-{j}") for j, part in enumerate(parts)])


class Talk:
    """One client, one script, and how often each call of the server was run."""

    def __init__(self, steps: list[list[str]], sends: Sends, *, store: bool, mixed_turns: str) -> None:
        self.runs: Counter[str] = Counter()
        self.provider = ScriptedProvider(*script_of(steps), *[answer(say("Done.")) for _ in range(20)])
        self._engine = engine_of(self.provider, ToolServerFake("depot", lookup=self._look), mixed_turns=mixed_turns)
        self._sends, self._store = sends, store
        self._items: list[Plain] = []

    async def _look(self, asked: ToolCall, _: ToolContext) -> str:
        self.runs[json.loads(asked.arguments)["key"]] += 1
        return f"found {asked.arguments}"

    async def hold(self, rounds: int) -> None:
        for _ in range(rounds):
            self._items.append({"role": "user", "content": "Go on."})
            while waiting := _waiting(await self._ask()):
                self._items += waiting

    async def _ask(self) -> Response:
        items = self._sends(self._items)
        response = await self._engine.create(ask(items, tools=TOOLS, store=self._store))
        self._items += [to_plain(item) for item in response.output]
        return response


class Chain(Talk):
    """A client that goes on by the id of the last response. It sends a request again when it has failed, and some of
    them twice, and then goes on from either.
    """

    def __init__(self, steps: list[list[str]], repeats: Iterable[tuple[bool, bool]], *, mixed_turns: str) -> None:
        super().__init__(steps, faithful, store=True, mixed_turns=mixed_turns)
        self._repeats = iter(repeats)
        self._last: str | None = None

    async def _ask(self) -> Response:
        request = ask(self._items, tools=TOOLS, previous_response_id=self._last)
        is_twice, is_from_first = next(self._repeats, (False, False))
        answers = [await self._tried(request) for _ in range(1 + is_twice)]
        response = answers[0 if is_from_first else -1]
        self._items, self._last = [], response.id
        return response

    async def _tried(self, request: CreateRequest) -> Response:
        while True:
            try:
                response = await self._engine.create(request)
            except BackendUnavailable:
                continue
            if response.status != "failed":
                return response


def _waiting(response: Response) -> list[Plain]:
    answered = {item.call_id for item in response.output if isinstance(item, FunctionCallOutput)}
    calls = [item for item in response.output if isinstance(item, FunctionCall) and item.call_id not in answered]
    return [{"type": "function_call_output", "call_id": each.call_id, "output": "noon"} for each in calls]


def asked_for(steps: list[list[str]]) -> set[str]:
    return {f"{i}-{j}" for i, parts in enumerate(steps) for j, part in enumerate(parts) if part == "server"}


# ---- what always holds ----

_often = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
_modes = st.sampled_from(["pause", "execute"])


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("sends", [*WHOLE, *LOSSY], ids=lambda sends: sends.__name__)
@_often
@given(steps=_steps, mixed_turns=_modes)
async def test_no_call_is_run_twice(steps: list[list[str]], mixed_turns: str, sends: Sends, store: bool) -> None:
    talk = Talk(steps, sends, store=store, mixed_turns=mixed_turns)
    await talk.hold(rounds=len(steps))
    assert all(count == 1 for count in talk.runs.values()), talk.runs
    assert set(talk.runs) <= asked_for(steps)


@pytest.mark.parametrize(
    ("sends", "store"),
    [*((sends, store) for sends in WHOLE for store in (True, False)), (by_item_id, True), (without_runs, True)],
    ids=lambda value: getattr(value, "__name__", {True: "stored", False: "not stored"}.get(value, "")),
)
@_often
@given(steps=_steps, mixed_turns=_modes)
async def test_every_call_is_run_and_its_result_stays_with_it(
    steps: list[list[str]], mixed_turns: str, sends: Sends, store: bool
) -> None:
    talk = Talk(steps, sends, store=store, mixed_turns=mixed_turns)
    await talk.hold(rounds=len(steps))
    assert set(talk.runs) == asked_for(steps)
    assert_told(talk.provider)


def assert_told(provider: ScriptedProvider) -> None:
    """With each call of the server the model is shown what that very call came to."""
    told = sent(provider.requests[-1])["messages"]
    results = {message["tool_call_id"]: message["content"] for message in told if message["role"] == "tool"}
    calls = [each for message in told for each in message.get("tool_calls", ()) if each["function"]["name"] == "lookup"]
    assert all(results[each["id"]] == f"found {each['function']['arguments']}" for each in calls)


@_often
@given(steps=_shaky, repeats=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8), mixed_turns=_modes)
async def test_no_call_is_run_twice_by_those_who_try_a_continuation_again(
    steps: list[list[str]], repeats: list[tuple[bool, bool]], mixed_turns: str
) -> None:
    talk = Chain(steps, repeats, mixed_turns=mixed_turns)
    await talk.hold(rounds=len(steps))
    assert all(count == 1 for count in talk.runs.values()), talk.runs
    assert_told(talk.provider)
