"""`GET /docs`: the page that shows the document, its files, and examples that work."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import uvicorn
from msgspec.structs import replace

import antwort
from antwort.api.responses import Model
from antwort.app import build
from antwort.asgi import create_app
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendUnavailable
from antwort.server.auth import Keyring
from antwort.server.http import Transport
from antwort.server.server import listen
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from antwort.testing.backend import DemoBackend
from key_kit import a_key, bearing
from mounted import in_starlette, run_by_uvicorn
from openapi_kit import Json, described
from raw_http import ask
from serving import Serving, serving
from settings_kit import in_front_of

VENDORED = Path(antwort.__file__).parent / "server" / "vendored" / "swagger-ui"


class Outline(HTMLParser):
    """What a browser would load for the page, and the scripts and styles that stand in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: dict[str, str] = {}
        self.attributes: set[str] = set()
        self._tag = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {name for name, _ in attrs}
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style"):
            assert self._tag not in self.inline
            self.inline[self._tag] = data

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


def engine(**settings: Any) -> Engine:
    provider = ScriptedProvider(answer(say("Hello")))
    return Engine(provider, store=MemoryStore(), settings=EngineSettings(**settings))


# ---- the page ----


async def test_the_page_loads_nothing_but_files_of_this_server() -> None:
    async with serving(engine()) as server:
        page = await server.ask("GET", "/docs")
        links = [link for link in Outline(page.body.decode()).links if not link.startswith("data:")]
        assert sorted(link.partition("?")[0] for link in links) == ["docs/swagger-ui-bundle.js", "docs/swagger-ui.css"]
        for link in links:
            assert (await server.ask("GET", f"/{link}")).status == 200


async def test_the_policy_of_the_page_allows_nothing_but_what_is_in_it_and_this_server() -> None:
    async with serving(engine()) as server:
        page = await server.ask("GET", "/docs")
    outline = Outline(page.body.decode())
    digests = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for tag, text in outline.inline.items()
    }
    rules = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
    assert rules == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "script-src": f"'self' 'sha256-{digests['script']}'",
        "style-src": f"'self' 'sha256-{digests['style']}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert not [name for name in outline.attributes if name == "style" or name.startswith("on")]
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    assert page.headers["x-content-type-options"] == "nosniff"


async def test_files_of_the_page_are_requested_by_version_and_cached_for_good() -> None:
    version = re.search('"version": "([^"]*)"', (VENDORED / "package.json").read_text())
    assert version
    async with serving(engine()) as server:
        links = Outline((await server.ask("GET", "/docs")).body.decode()).links[1:]
        for link, kind in zip(links, ("text/css", "text/javascript"), strict=True):
            assert link.endswith(f"?v={version[1]}")
            reply = await server.ask("GET", f"/{link}")
            assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
            assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert reply.headers["x-content-type-options"] == "nosniff"
            again = await server.ask("GET", f"/{link}", None, {"if-none-match": reply.headers["etag"]})
            assert (again.status, again.body) == (304, b"")
        for name in ("package.json", "LICENSE", "..%2F..%2Froutes.py", "%2Fetc%2Fpasswd", "x", "a/b"):
            assert (await server.ask("GET", f"/docs/{name}")).error["code"] == "unknown_url"


def test_the_viewer_is_unchanged_and_has_its_licence() -> None:
    listed = [line.split() for line in (VENDORED / "SHA256SUMS").read_text().splitlines()]
    assert {name: hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() for _, name in listed} == {
        name: digest for digest, name in listed
    }
    assert {path.name for path in VENDORED.iterdir()} == {"SHA256SUMS", "README.md"} | {name for _, name in listed}
    assert "Apache License" in (VENDORED / "LICENSE").read_text()


@pytest.mark.parametrize("is_keyed", [True, False])
async def test_the_page_and_its_files_need_no_key(is_keyed: bool) -> None:
    ring, ours = Keyring([a_key("sk-ann", "ann")]), engine()
    app = Transport(ours, identify=ring.identify, credentials="key") if is_keyed else Transport(ours)
    async with serving(ours, app) as server:
        for path in ("/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js"):
            reply = await server.ask("GET", path)
            assert reply.status == 200
            assert (await server.ask("GET", path, None, bearing("sk-ann"))).body == reply.body
        assert (await server.ask("GET", "/docs/other.js")).status == (401 if is_keyed else 404)


async def test_the_page_of_a_mounted_server_finds_its_files_and_its_document() -> None:
    async with run_by_uvicorn(in_starlette(create_app(engine()))) as port:
        page = await ask(port, "GET", "/ai/docs")
        for link in [*Outline(page.body.decode()).links[1:], "openapi.json"]:
            assert (await ask(port, "GET", urljoin("/ai/docs", link))).status == 200
        document = await ask(port, "GET", "/ai/openapi.json")
    assert document.json()["servers"][0]["url"] == "/ai"


async def test_a_server_that_is_not_mounted_stands_at_the_root() -> None:
    async with serving(engine()) as server:
        assert (await server.ask("GET", "/openapi.json")).json()["servers"][0]["url"] == "/"


# ---- the examples ----


def examples(document: Json) -> dict[tuple[str, str], Json]:
    """The bodies of the examples, by path and summary."""
    return {
        (path, example["summary"]): example["value"]
        for path, methods in document["paths"].items()
        for example in methods.get("post", {})
        .get("requestBody", {})
        .get("content", {})
        .get("application/json", {})
        .get("examples", {})
        .values()
    }


EXAMPLES = examples(described())


@asynccontextmanager
async def in_front_of_two_models(**settings: Any) -> AsyncIterator[Serving]:
    """A server in front of a backend that refuses any other model."""
    with listen("127.0.0.1", 0) as sock:
        backend = uvicorn.Server(uvicorn.Config(DemoBackend(("first", "second")), lifespan="off", log_config=None))
        running = asyncio.create_task(backend._serve([sock]))
        try:
            app = await build(replace(in_front_of(f"http://127.0.0.1:{sock.getsockname()[1]}/v1"), **settings))
            async with serving(app.engine, app.asgi) as server:
                yield server
        finally:
            backend.should_exit = True
            await running


@pytest.mark.parametrize(("path", "summary"), EXAMPLES)
async def test_every_example_works_when_it_is_sent_to_the_server_that_shows_it(path: str, summary: str) -> None:
    async with in_front_of_two_models() as server:
        body = examples((await server.ask("GET", "/openapi.json")).json())[path, summary]
        conversation = (await server.ask("POST", "/v1/conversations", {})).json()["id"]
        reply = await server.ask("POST", path.replace("{id}", conversation), body)
    assert reply.status == 200
    assert b"response.failed" not in reply.body
    assert b'"status":"failed"' not in reply.body
    assert body.get("model", "first") == "first"


async def test_the_examples_name_the_default_model() -> None:
    async with in_front_of_two_models(default_model="second") as server:
        told = examples((await server.ask("GET", "/openapi.json")).json())
    assert {body["model"] for body in told.values() if "model" in body} == {"second"}


class Listing(ScriptedProvider):
    """Counts how often it is asked for its models, or refuses."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.asked = 0
        self.fails = fails

    async def models(self) -> Sequence[Model]:
        self.asked += 1
        if self.fails:
            raise BackendUnavailable("It is down.")
        return await super().models()


async def test_the_document_is_there_when_no_model_is_known() -> None:
    async with serving(Engine(Listing(fails=True), store=MemoryStore())) as server:
        reply = await server.ask("GET", "/openapi.json")
    assert reply.status == 200
    assert {body["model"] for body in examples(reply.json()).values() if "model" in body} == {"MODEL"}


async def test_the_backend_is_not_asked_for_its_models_by_every_request_for_the_document() -> None:
    provider = Listing()
    async with serving(Engine(provider, store=MemoryStore())) as server:
        for _ in range(5):
            assert (await server.ask("GET", "/openapi.json")).status == 200
    assert provider.asked == 1
