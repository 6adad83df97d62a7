"""The page on OpenAI's surface, held against a running server: its tables are read, and each cell is tried."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from openai.types.responses import response_create_params

from antwort.api.requests import CreateRequest
from antwort.engine.engine import Engine
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import sent
from pages import ROOT
from serving import HELLO, RESPONSES, Serving, serving

PAGE = (ROOT / "docs/reference/openai-surface.md").read_text(encoding="utf-8")
METHODS = ("GET", "POST", "DELETE")
ONLY_ON_SOCKETS = {"generate"}
ONLY_OURS = {"raw", "raw_input", "allowed_tools", "additional", "unknown_fields"}


class Row(NamedTuple):
    named: tuple[str, ...]
    """What stands in backticks in its first cell."""
    verdict: str

    def __str__(self) -> str:
        return f"{' '.join(self.named)[:40]}: {self.verdict}"


def table(title: str) -> list[Row]:
    _, _, section = PAGE.partition(f"## {title}\n")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [line.strip("|").split("|") for line in lines[2:]]
    return [Row(tuple(re.findall("`([^`]+)`", first)), verdict.strip()) for first, verdict, *_ in cells]


ADDRESSES, FIELDS, ITEMS = table("Addresses"), table("Fields of a request"), table("Items")


def those(rows: list[Row], *verdicts: str) -> list[Row]:
    return [row for row in rows if row.verdict in verdicts]


def each(rows: list[Row], *verdicts: str) -> list[str]:
    return [name for row in those(rows, *verdicts) for name in row.named]


def scripted(count: int = 1) -> tuple[Engine, ScriptedProvider]:
    provider = ScriptedProvider(*(answer(say("Hello")) for _ in range(count)))
    return Engine(provider, store=MemoryStore()), provider


def test_the_tables_are_there_and_have_no_other_verdicts() -> None:
    assert {row.verdict for row in ADDRESSES} == {"yes", "ours", "404", "405"}
    assert {row.verdict for row in FIELDS} == {"yes", "ours", "some", "echoed", "ignored", "400"}
    assert {row.verdict for row in ITEMS} == {"yes", "kept", "some", "400"}
    assert all(row.named for row in (*ADDRESSES, *FIELDS, *ITEMS))


# ---- addresses ----


def requests(row: Row) -> Iterator[tuple[str, str]]:
    """Method and address: where the one is left out it holds for all, where the other begins with dots it goes on
    from the last; a method alone is one of the address that comes next.
    """
    base, waiting = "", []
    for name in row.named:
        method, _, address = name.rpartition(" ") if "/" in name else (name, "", "")
        if not address:
            waiting.append(method)
            continue
        if "…" not in address:
            base = address
        path = re.sub(r"\{[a-z_]+\}", "nope", address.replace("…", base))
        yield from ((each, path) for each in (*waiting, method))
        waiting = []


async def outcome(server: Serving, method: str, path: str) -> tuple[int, str]:
    reply = await server.ask(method, path, {} if method == "POST" else None)
    return reply.status, "" if reply.status == 200 else reply.error["code"]


@pytest.mark.parametrize("row", those(ADDRESSES, "404"), ids=str)
async def test_what_is_not_there_is_not_there(row: Row) -> None:
    async with serving(scripted()[0]) as server:
        for _, path in requests(row):
            for method in METHODS:
                for below in ("", "/x", "/x/y"):
                    assert await outcome(server, method, f"{path}{below}") == (404, "unknown_url"), path


@pytest.mark.parametrize("row", those(ADDRESSES, "405"), ids=str)
async def test_what_is_refused_is_refused_so(row: Row) -> None:
    async with serving(scripted()[0]) as server:
        for method, path in requests(row):
            status, code = await outcome(server, method, path)
            assert (str(status), code != "unknown_url") == (row.verdict, True)


@pytest.mark.parametrize(
    "row", [row for row in those(ADDRESSES, "yes", "ours") if "/metrics" not in row.named], ids=str
)
async def test_what_is_there_is_there(row: Row) -> None:
    async with serving(scripted()[0]) as server:
        for method, path in requests(row):
            found = [await outcome(server, each, path) for each in ([method] if method else METHODS)]
            assert any(status != 405 and code != "unknown_url" for status, code in found), (method, path)


# ---- fields ----

SAMPLES: dict[str, Any] = {"background": True, "prompt": {"id": "p"}}


def test_every_field_of_openai_and_every_field_that_is_read_is_named() -> None:
    named = {name for row in FIELDS for name in row.named}
    theirs = {*response_create_params.ResponseCreateParamsBase.__annotations__}
    read = {*CreateRequest.__struct_fields__} - ONLY_OURS - ONLY_ON_SOCKETS
    assert theirs - named == set()
    assert read - named == set()
    assert {*each(FIELDS, "yes", "ours", "some", "echoed")} <= read
    assert not theirs & {*each(FIELDS, "ours")}


@pytest.mark.parametrize("field", each(FIELDS, "400"))
async def test_a_field_that_is_refused_is_named(field: str) -> None:
    async with serving(scripted()[0]) as server:
        reply = await server.ask("POST", RESPONSES, {**HELLO, field: SAMPLES[field]})
    assert (reply.status, reply.error["param"]) == (400, field)


@pytest.mark.parametrize("field", each(FIELDS, "ignored"))
async def test_a_field_that_is_ignored_changes_nothing(field: str) -> None:
    engine, provider = scripted(2)
    async with serving(engine) as server:
        without, given = [
            (await server.ask("POST", RESPONSES, body)).json() for body in (HELLO, {**HELLO, field: {"odd": [1]}})
        ]
    assert given.keys() == without.keys()
    assert sent(provider.requests[1]) == sent(provider.requests[0])


@pytest.mark.parametrize("field", each(FIELDS, "echoed"))
async def test_a_field_that_is_echoed_is_in_the_response(field: str) -> None:
    engine, _ = scripted()
    async with serving(engine) as server:
        reply = await server.ask("POST", RESPONSES, {**HELLO, field: "flex"})
    assert reply.json()[field] == "flex"


# ---- items ----

REST: dict[str, Any] = {
    "mcp_approval_request": {"server_label": "s", "name": "n", "arguments": "{}"},
    "mcp_approval_response": {"approval_request_id": "r", "approve": True},
}


async def shown(*items: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model gets to see of a talk that has these items in it."""
    engine, provider = scripted()
    async with serving(engine) as server:
        talk = [*items, {"role": "user", "content": "Hello"}]
        reply = await server.ask("POST", RESPONSES, {**HELLO, "input": talk})
        assert reply.status == 200, reply.body
        listed = (await server.ask("GET", f"{RESPONSES}/{reply.json()['id']}/input_items?order=asc")).json()
        assert [item.get("type") for item in listed["data"]] == [*(item["type"] for item in items), "message"]
    messages: list[dict[str, Any]] = sent(provider.requests[0])["messages"]
    return messages


@pytest.mark.parametrize("kind", each(ITEMS, "kept"))
async def test_an_item_that_is_kept_is_not_shown_to_the_model(kind: str) -> None:
    item = {"type": kind, "id": "x_1", "status": "completed", **REST.get(kind, {})}
    assert [message["content"] for message in await shown(item)] == ["Hello"]


@pytest.mark.parametrize(
    "kind", [kind for kind in each(ITEMS, "yes") if re.fullmatch("(?!mcp|func|custom).*_call", kind)]
)
async def test_a_call_of_another_history_is_shown_with_its_result(kind: str) -> None:
    call = {"type": kind, "call_id": "c_1", "action": {"type": "exec"}, "status": "completed"}
    messages = await shown(call, {"type": f"{kind}_output", "call_id": "c_1", "output": "found"})
    assert [message["role"] for message in messages] == ["assistant", "tool", "user"]
    assert (len(messages[0]["tool_calls"]), messages[1]["content"]) == (1, "found")


@pytest.mark.parametrize("kind", each(ITEMS, "400"))
async def test_content_that_is_refused_says_so(kind: str) -> None:
    message = {"role": "user", "content": [{"type": kind, kind: {"data": "AA==", "format": "wav"}}]}
    async with serving(scripted()[0]) as server:
        reply = await server.ask("POST", RESPONSES, {**HELLO, "input": [message]})
    assert (reply.status, reply.error["param"]) == (400, "input[0].content[0].type")
    assert "audio is not taken by this server" in reply.error["message"]
