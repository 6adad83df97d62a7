"""Nobody reaches what is another's: every route and way, every kind of stranger, over a real server.

To a stranger, what is another's is not there: the answer is that to an id which never existed, to the letter. A route
that is new has no row here, and fails the first test until somebody has thought about it.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from antwort.engine.engine import Engine
from antwort.engine.settings import BackgroundSettings, EngineSettings
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.server.api_reference import ApiReference
from antwort.server.auth import Keyring
from antwort.server.http import Transport, everyone_is_anonymous
from antwort.server.offer import Offer
from antwort.server.quotas import Quotas
from antwort.server.resources import ApprovalRoutes, ConversationRoutes
from antwort.server.routes import Routes
from antwort.storage.base import ResponseStore
from antwort.storage.memory import MemoryStore
from antwort.storage.migrations import upgrade
from antwort.storage.sqlite import SqliteStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from engine_kit import replies
from key_kit import a_key, bearing
from raw_http import Reply
from serving import HELLO, RESPONSES, STREAMED, Serving, serving, until

RING = Keyring(
    a_key(f"sk-{name}", name, identity=Identity(tenant, owner, key=name))
    for name, tenant, owner in (
        ("ann", "acme", "ann"),
        ("ann-too", "acme", "ann"),
        ("colleague", "acme", "bob"),
        ("namesake", "other", "ann"),
        ("stranger", "other", "bob"),
    )
)
ANN, ANN_TOO = bearing("sk-ann"), bearing("sk-ann-too")
OTHERS = {
    "same tenant, other owner": bearing("sk-colleague"),
    "other tenant, same owner": bearing("sk-namesake"),
    "other tenant, other owner": bearing("sk-stranger"),
}
NOBODIES = {"no key": {}, "a wrong key": bearing("sk-wrong"), "no bearer": {"authorization": "Basic sk-ann"}}
CONVERSATIONS = "/v1/conversations"
APPROVALS = "/v1/approvals"
GUARDED = {"type": "mcp", "server_label": "depot", "require_approval": "always"}
SPOKEN = {"role": "user", "content": "A secret", "id": "msg_of_the_conversation"}
GIVEN = [{"role": "user", "content": "Hello", "id": "msg_of_the_input"}]


@dataclass
class World:
    """What Ann has: a response that has ended, one that runs, one that runs and is not stored, one that waits to be
    made in the background, a conversation, and a call that waits for her approval.
    """

    server: Serving
    finished: str
    output_item: str
    input_item: str
    live: str
    unstored: str
    later: str
    conversation: str
    approval: str
    asking_for: str
    asking: list[asyncio.Task[Reply]]
    hold: asyncio.Event

    async def seen(self) -> list[Any]:
        """All of it, as Ann sees it."""
        paths = [RESPONSES, f"{RESPONSES}?order=asc"]
        for response_id in (self.finished, self.live, self.later):
            paths += [f"{RESPONSES}/{response_id}", f"{RESPONSES}/{response_id}/input_items"]
        paths += [f"{CONVERSATIONS}/{self.conversation}", f"{CONVERSATIONS}/{self.conversation}/items"]
        paths += [APPROVALS, f"{APPROVALS}/{self.approval}"]
        replies = [await self.server.ask("GET", path, None, ANN) for path in paths]
        return [(reply.status, reply.body) for reply in replies] + sorted(self.server.engine.live_runs)

    async def end(self) -> None:
        """What ran was not disturbed."""
        running = [run.response.status for run in self.server.engine.live_runs.values()]
        self.hold.set()
        replies = await asyncio.gather(*self.asking)
        assert [b"response.completed" in reply.body for reply in replies].count(True) == len(running)


# ---- the rows ----

Made: TypeAlias = tuple[str, dict[str, Any] | None]


@dataclass(frozen=True)
class Way:
    """How a route names something: `make` is given its id, and says what is asked, and with what body."""

    name: str
    target: str
    """Which of Ann's ids it names; empty when it names none, and must find nothing by itself."""
    make: Callable[[str], Made]
    owner: int = 200
    """The status that its owner gets."""


def by_id(target: str, tail: str = "", *, owner: int = 200) -> Way:
    return Way(f"{target}{tail}", target, lambda name: (f"{RESPONSES}/{name}{tail}", None), owner)


def by_query(target: str, query: str) -> Way:
    return Way(f"{query}{target}", target, lambda name: (f"{RESPONSES}?{query}{name}", None))


def after(target: str, *, owner: int = 200, **fields: Any) -> Way:
    body = {**HELLO, **fields}
    name = " ".join(["after", target, *fields])
    return Way(name, target, lambda name: (RESPONSES, {**body, "previous_response_id": name}), owner)


def compacting(target: str, *, owner: int = 200) -> Way:
    path = f"{RESPONSES}/compact"
    return Way(f"compact {target}", target, lambda name: (path, {**HELLO, "previous_response_id": name}), owner)


def counting(target: str, *, owner: int = 200) -> Way:
    path = f"{RESPONSES}/input_tokens"
    return Way(f"count after {target}", target, lambda name: (path, {**HELLO, "previous_response_id": name}), owner)


def referring(target: str) -> Way:
    body = {**HELLO, "input": [{"type": "item_reference", "id": "…"}, *GIVEN]}
    return Way(
        f"item_reference to {target}",
        target,
        lambda name: (RESPONSES, {**body, "input": [{"type": "item_reference", "id": name}, *GIVEN]}),
    )


def of_conversation(tail: str = "", body: dict[str, Any] | None = None) -> Way:
    return Way(f"conversation{tail}", "conversation", lambda name: (f"{CONVERSATIONS}/{name}{tail}", body))


def turn_of(**fields: Any) -> Way:
    body = {**HELLO, **fields}
    name = " ".join(["turn of conversation", *fields])
    return Way(name, "conversation", lambda name: (RESPONSES, {**body, "conversation": name}))


def copying(target: str) -> Way:
    """A conversation begun with what is another's."""
    return Way(
        f"conversation with a reference to {target}",
        target,
        lambda name: (CONVERSATIONS, {"items": [{"type": "item_reference", "id": name}]}),
    )


def of_approval(tail: str = "/", query: str = "") -> Way:
    target = "approval" if tail == "/" or query else ""
    return Way(f"approval{tail}{query}", target, lambda name: (f"{APPROVALS}{tail}{query}{name}", None))


def deciding(target: str = "approval") -> Way:
    """Approving what is another's, by its id alone."""

    def make(name: str) -> Made:
        decision = {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}
        return RESPONSES, {**HELLO, "tools": [GUARDED], "input": [{"type": "item_reference", "id": name}, decision]}

    return Way(f"approve {target}", target, make)


def plain(path: str) -> Way:
    return Way(path, "", lambda _: (path, None))


READ = [
    *[by_id("finished"), by_id("live"), by_id("later"), by_id("unstored", owner=404)],
    by_id("finished", "?stream=true"),
    *[by_id(target, "?stream=true&starting_after=999", owner=400) for target in ("finished", "live", "later")],
    by_id("unstored", "?stream=true", owner=404),
]
LIST = [
    *[by_query("", query) for query in ("", "status=in_progress", "status=completed", "model=scripted", "order=asc")],
    *[by_query(target, f"{cursor}=") for target in ("finished", "live", "later") for cursor in ("after", "before")],
]
ITEMS = [
    by_id("finished", "/input_items"),
    by_id("live", "/input_items"),
    by_id("later", "/input_items"),
    by_id("unstored", "/input_items", owner=404),
    by_id("finished", "/input_items?after=msg_of_the_input"),
]
SAID = "/items/msg_of_the_conversation"
TOLD = [of_conversation("/items"), of_conversation("/items?after=msg_of_the_conversation")]
WAITING = [
    *[plain(f"{APPROVALS}{query}") for query in ("", "?status=pending", "?order=asc")],
    *[of_approval("", f"?{cursor}=") for cursor in ("after", "before")],
]
ROWS: dict[tuple[str, str], list[Way]] = {
    ("POST", "/v1/responses"): [
        after("finished"),
        after("finished", stream=True),
        after("live", owner=409),
        after("later", owner=409),
        after("finished", background=True),
        after("later", owner=409, background=True),
        after("unstored", owner=404),
        referring("output_item"),
        referring("input_item"),
        turn_of(),
        turn_of(stream=True),
        turn_of(background=True),
        deciding(),
    ],
    ("POST", "/v1/responses/compact"): [compacting("finished"), compacting("live", owner=409)],
    ("POST", "/v1/responses/input_tokens"): [counting("finished"), counting("live", owner=409)],
    ("GET", "/v1/responses"): LIST,
    ("HEAD", "/v1/responses"): LIST,
    ("GET", "/v1/responses/{id}"): READ,
    ("HEAD", "/v1/responses/{id}"): READ,
    ("DELETE", "/v1/responses/{id}"): [
        *[by_id("finished"), by_id("live"), by_id("later"), by_id("unstored", owner=404)],
    ],
    ("POST", "/v1/responses/{id}/cancel"): [
        by_id("finished", "/cancel"),
        by_id("live", "/cancel"),
        by_id("later", "/cancel"),
        by_id("unstored", "/cancel"),
    ],
    ("GET", "/v1/responses/{id}/input_items"): ITEMS,
    ("HEAD", "/v1/responses/{id}/input_items"): ITEMS,
    ("POST", "/v1/conversations"): [copying("output_item"), copying("input_item")],
    ("GET", "/v1/conversations/{id}"): [of_conversation()],
    ("HEAD", "/v1/conversations/{id}"): [of_conversation()],
    ("POST", "/v1/conversations/{id}"): [of_conversation(body={"metadata": {"mine": "now"}})],
    ("DELETE", "/v1/conversations/{id}"): [of_conversation()],
    ("GET", "/v1/conversations/{id}/items"): TOLD,
    ("HEAD", "/v1/conversations/{id}/items"): TOLD,
    ("POST", "/v1/conversations/{id}/items"): [of_conversation("/items", {"items": GIVEN})],
    ("GET", "/v1/conversations/{id}/items/{item_id}"): [of_conversation(SAID)],
    ("HEAD", "/v1/conversations/{id}/items/{item_id}"): [of_conversation(SAID)],
    ("DELETE", "/v1/conversations/{id}/items/{item_id}"): [of_conversation(SAID)],
    ("GET", "/v1/approvals"): WAITING,
    ("HEAD", "/v1/approvals"): WAITING,
    ("GET", "/v1/approvals/{id}"): [of_approval()],
    ("HEAD", "/v1/approvals/{id}"): [of_approval()],
    # Nothing of anybody's:
    ("GET", "/v1/models"): [plain("/v1/models")],
    ("HEAD", "/v1/models"): [plain("/v1/models")],
    ("GET", "/v1/models/{name}"): [plain("/v1/models/scripted")],
    ("HEAD", "/v1/models/{name}"): [plain("/v1/models/scripted")],
    ("GET", "/v1/toolsets"): [plain("/v1/toolsets")],
    ("HEAD", "/v1/toolsets"): [plain("/v1/toolsets")],
    # Open:
    ("GET", "/healthz"): [],
    ("HEAD", "/healthz"): [],
    ("GET", "/readyz"): [],
    ("HEAD", "/readyz"): [],
    ("GET", "/openapi.json"): [],
    ("HEAD", "/openapi.json"): [],
    ("GET", "/docs"): [],
    ("HEAD", "/docs"): [],
}
CASES = [pytest.param(method, way, id=f"{method} {way.name}") for (method, _), ways in ROWS.items() for way in ways]


@pytest.mark.proves("MISTAKE-27")
def test_every_route_has_a_row() -> None:
    engine = Engine(ScriptedProvider(), store=MemoryStore())
    offered = Routes(engine, everyone_is_anonymous, body_limit=1, quotas=Quotas({}), offer=Offer()).offered()
    assert offered.keys() == ROWS.keys()
    endpoints = {
        f"{kind.__name__}.{name}"
        for kind in (Routes, ConversationRoutes, ApprovalRoutes, ApiReference)
        for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if name[0] != "_"
    }
    assert {getattr(endpoint, "__qualname__", "") for endpoint in offered.values()} == endpoints


# ---- the world ----


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tenancy") / "antwort.db"
    upgrade(path)
    return path


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, migrated: Path, tmp_path: Path) -> ResponseStore:
    if request.param == "memory":
        return MemoryStore()
    return await SqliteStore.open(Path(shutil.copy(migrated, tmp_path)))


@asynccontextmanager
async def created(store: ResponseStore) -> AsyncIterator[World]:
    hold = asyncio.Event()
    held = answer(say("Hello"), hold, say(" there"))
    provider = ScriptedProvider(answer(say("Hello")), answer(call("ship")), held, held, answer(say("And more")))
    engine = Engine(
        provider,
        store=store,
        executors=[ToolServerFake("depot", ship=replies("A secret"))],
        settings=EngineSettings(background=BackgroundSettings(at_once=0)),
    )
    async with serving(engine, Transport(engine, identify=RING.identify, quotas=RING.quotas)) as server:
        finished = (await server.ask("POST", RESPONSES, {**HELLO, "input": GIVEN}, ANN)).json()
        waiting = (await server.ask("POST", RESPONSES, {**HELLO, "tools": [GUARDED]}, ANN)).json()
        begun = (await server.ask("POST", CONVERSATIONS, {"items": [SPOKEN], "metadata": {"of": "ann"}}, ANN)).json()
        later = (await server.ask("POST", RESPONSES, {**HELLO, "background": True, "input": GIVEN}, ANN)).json()
        asking = [
            asyncio.create_task(server.ask("POST", RESPONSES, {**STREAMED, "input": GIVEN, "store": stored}, ANN))
            for stored in (True, False)
        ]
        await until(lambda: sum(bool(run.response.output) for run in engine.live_runs.values()) == 2)
        ids = {run.response.store: response_id for response_id, run in engine.live_runs.items()}
        yield World(
            server=server,
            finished=finished["id"],
            output_item=finished["output"][0]["id"],
            input_item="msg_of_the_input",
            live=ids[True],
            unstored=ids[False],
            later=later["id"],
            conversation=begun["id"],
            approval=waiting["output"][-1]["id"],
            asking_for=waiting["id"],
            asking=asking,
            hold=hold,
        )
        hold.set()
        await asyncio.gather(*asking)


def shape(reply: Reply, name: str) -> tuple[int, dict[str, str], bytes]:
    """An answer without what is new each time, and without the id that was asked for."""
    headers = {key: value for key, value in reply.headers.items() if key not in ("x-request-id", "date")}
    return reply.status, headers, reply.body.replace(name.encode(), b"THE ID")


# ---- the matrix ----


@pytest.mark.proves("MISTAKE-27", "MISTAKE-28", "MISTAKE-29", "RULING-6")
@pytest.mark.parametrize(("method", "way"), CASES)
async def test_a_stranger_finds_what_was_never_there_and_its_owner_finds_it(
    store: ResponseStore, method: str, way: Way
) -> None:
    async with created(store) as world:
        target = getattr(world, way.target) if way.target else ""
        never = new_id(target.partition("_")[0])[: len(target)].ljust(len(target), "x") if target else ""

        async def ask(name: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
            path, body = way.make(name)
            return shape(await world.server.ask(method, path, body, headers), name)

        before = await world.seen()
        for who, headers in OTHERS.items():
            theirs = await ask(target, headers)
            assert theirs == await ask(never, headers), who
            assert theirs[0] in ((400, 404) if target else (200,)), who
            _check_nothing_of_hers(world, theirs[2])
            assert await world.seen() == before, who
        refusals = [await ask(name, headers) for headers in NOBODIES.values() for name in (target, never)]
        assert {status for status, *_ in refusals} == {401}
        assert [refusals[0], refusals[2]] == [refusals[1], refusals[3]]
        assert await world.seen() == before
        assert (await ask(target, ANN_TOO))[0] == way.owner
        await world.end()


def _check_nothing_of_hers(world: World, body: bytes) -> None:
    """Her ids are in no answer but where they were asked with, which is masked by now."""
    hers = (world.finished, world.live, world.unstored, world.later, world.output_item, world.conversation, "A secret")
    assert not [name for name in hers if name.encode() in body]


async def test_the_list_of_one_who_has_nothing_is_empty_and_the_owners_is_not(store: ResponseStore) -> None:
    async with created(store) as world:
        for headers in OTHERS.values():
            assert (await world.server.ask("GET", RESPONSES, None, headers)).json()["data"] == []
        for headers in (ANN, ANN_TOO):
            found = (await world.server.ask("GET", RESPONSES, None, headers)).json()["data"]
            assert [response["id"] for response in found] == [
                world.live,
                world.later,
                world.asking_for,
                world.finished,
            ]
        await world.end()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/docs", "/docs/swagger-ui.css"])
async def test_what_is_open_says_nothing_of_anybody(path: str) -> None:
    async with created(MemoryStore()) as world:
        for headers in (*OTHERS.values(), *NOBODIES.values()):
            reply = await world.server.ask("GET", path, None, headers)
            assert reply.status == 200
            _check_nothing_of_hers(world, reply.body)
        await world.end()
