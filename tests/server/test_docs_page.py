"""`GET /docs`: the document as a page."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from antwort.asgi import create_app
from antwort.engine.engine import Engine
from antwort.server.auth import Keyring
from antwort.server.description import address_of
from antwort.server.http import Transport
from antwort.server.openapi.page import page
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say
from key_kit import a_key, bearing
from mounted import in_starlette, run_by_uvicorn
from openapi_kit import described
from raw_http import ask
from serving import serving

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """The page as a browser sees it: what is open is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        given = dict(attrs)
        self.ids += [str(given["id"])] if "id" in given else []
        self.links += [str(given["href"])] if "href" in given else []
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def engine() -> Engine:
    return Engine(ScriptedProvider(answer(say("Hello")), models=("MODEL",)), store=MemoryStore())


def commands(text: str) -> Iterator[list[str]]:
    for found in re.findall("<pre>(.*?)</pre>", text, re.DOTALL):
        yield shlex.split(unescape(found).replace("\\\n", " "))


def test_all_operations_and_schemas_are_on_the_page_and_every_link_leads_to_one() -> None:
    plain = described()
    outline = Outline(page(plain))
    names = [row["operationId"] for methods in plain["paths"].values() for row in methods.values() if "tags" in row]
    assert sorted(outline.ids) == sorted([*names, *(f"schema-{name}" for name in plain["components"]["schemas"])])
    assert {link.removeprefix("#") for link in outline.links} - {*outline.ids} == {"openapi.json"}


def test_the_page_needs_nothing_but_itself() -> None:
    outline = Outline(page(described()))
    assert not {"script", "link", "img", "iframe", "form", "base"} & {*outline.tags}
    assert not {"src", "style"} & outline.attributes
    assert not [name for name in outline.attributes if name.startswith("on")]
    assert "@import" not in page(described())
    assert "url(" not in page(described())


def test_all_text_is_escaped() -> None:
    plain: dict[str, Any] = json.loads(json.dumps(described()).replace("The model.", "<script>alert(1)</script>&"))
    plain["components"]["schemas"]["Model"]["properties"]['<i a="'] = {"const": "<hr>", "description": "`</code>`"}
    plain["paths"]['/<u>"'] = {"get": {**plain["paths"]["/healthz"]["get"], "operationId": '"><u>'}}
    text = page(plain)
    assert not {"script", "i", "u", "hr"} & {*Outline(text).tags}
    for escaped in (
        "&lt;script&gt;alert(1)&lt;/script&gt;&amp;",
        "&lt;i a=&quot;",
        "&quot;&lt;hr&gt;&quot;",
        "/&lt;u&gt;",
    ):
        assert escaped in text


@pytest.mark.parametrize("is_keyed", [True, False])
async def test_the_page_is_open_and_says_whether_a_key_is_needed(is_keyed: bool) -> None:
    ring = Keyring([a_key("sk-ann", "ann")])
    ours = engine()
    app = Transport(ours, identify=ring.identify, credentials="key") if is_keyed else Transport(ours)
    async with serving(ours, app) as server:
        reply = await server.ask("GET", "/docs")
        assert (await server.ask("GET", "/docs", None, bearing("sk-ann"))).body == reply.body
    text = reply.body.decode()
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert ("asks for API keys" in text) is is_keyed
    asked = [command for command in commands(text) if "Authorization: Bearer YOUR_KEY" in command]
    assert len(asked) == (sum("/v1/" in " ".join(command) for command in commands(text)) if is_keyed else 0)


async def test_the_first_command_works() -> None:
    async with serving(engine()) as server:
        address = {"host": f"127.0.0.1:{server.port}"}
        text = (await server.ask("GET", "/docs", None, address)).body.decode()
        curl, url, *rest = next(commands(text))
        assert (curl, url) == ("curl", f"http://127.0.0.1:{server.port}/v1/responses")
        body = json.loads(rest[rest.index("-d") + 1])
        reply = await server.ask("POST", "/v1/responses", body)
    assert reply.status == 200


async def test_a_mounted_server_shows_where_it_is_mounted() -> None:
    async with run_by_uvicorn(in_starlette(create_app(engine()))) as port:
        reply = await ask(port, "GET", "/ai/docs", None, {"host": f"127.0.0.1:{port}"})
        document = await ask(port, "GET", "/ai/openapi.json")
    text = reply.body.decode()
    assert f"curl http://127.0.0.1:{port}/ai/v1/responses" in text
    assert document.json()["servers"][0]["url"] == "/ai"


async def test_a_server_that_is_not_mounted_stands_at_the_root() -> None:
    async with serving(engine()) as server:
        assert (await server.ask("GET", "/openapi.json")).json()["servers"][0]["url"] == "/"


@pytest.mark.parametrize("header", [{"host": "ai.example"}, {"host": "127.0.0.1", "x-forwarded-for": "10.0.0.1"}])
async def test_no_key_is_sent_in_clear_text_by_the_commands_of_a_server_that_may_stand_behind_a_proxy(
    header: dict[str, str],
) -> None:
    async with run_by_uvicorn(in_starlette(create_app(engine()))) as port:
        text = (await ask(port, "GET", "/ai/docs", None, header)).body.decode()
        near = (await ask(port, "GET", "/ai/docs", None, {"host": "localhost:80"})).body.decode()
    assert "http://" not in text
    assert text.count("export ANTWORT=https://HOST/ai<") == 1
    assert "curl $ANTWORT/v1/responses" in text
    assert "ANTWORT" not in near


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        ({"headers": [(b"host", b"a.example:8080")], "scheme": "https"}, "https://a.example:8080"),
        ({"headers": [(b"host", b"[::1]:8080")], "root_path": "/a b/"}, "http://[::1]:8080/a%20b"),
        ({"headers": [(b"host", b"app.localhost")]}, "http://app.localhost"),
        ({"headers": [(b"host", b"a.example:8080")], "scheme": "http"}, None),
        ({"headers": [(b"host", b"10.0.0.7")]}, None),
        ({"headers": [(b"host", b"localhost"), (b"via", b"1.1 proxy")]}, None),
        ({"headers": [(b"host", b"a<b>")], "server": ("127.0.0.1", 80)}, None),
        ({"headers": []}, None),
    ],
)
def test_the_address_is_that_of_the_request_where_that_can_be_told(scope: dict[str, Any], shown: str | None) -> None:
    assert address_of(scope) == shown
