"""A request names pictures by data: and public https: addresses; nothing else is passed on to be fetched."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.config.settings import Settings
from antwort.engine.engine import Engine
from antwort.engine.settings import EngineSettings
from antwort.net.media import AddressNotAllowed, MediaHosts
from antwort.net.ssrf import MAX_URL_CHARACTERS
from antwort.providers.base import Capabilities
from antwort.testing import ScriptedProvider, answer, say
from antwort.toolsets import find_network_problems
from evil_urls import EVIL
from serving import RESPONSES, serving

INSIDE = "http://169.254.169.254/latest/meta-data"
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def engine(*hosts: str, answers: int = 1) -> Engine:
    provider = ScriptedProvider(
        *(answer(say("ok")) for _ in range(answers)), capabilities=Capabilities(vision=True, files=True)
    )
    return Engine(provider, settings=EngineSettings(limits=Limits(media_hosts=hosts)))


def image(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": "x"}, image(INSIDE)]}, "content[1].image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": INSIDE}}]}, "content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_video", "video_url": INSIDE}]}, "content[0].video_url"),
        ({"role": "user", "content": [{"type": "input_file", "file_data": INSIDE}]}, "content[0].file_data"),
        ({"type": "function_call_output", "call_id": "c", "output": [image(INSIDE)]}, "output[0].image_url"),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": [image(INSIDE)]}, "output[0].image_url"),
        (
            {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "{}", "output": [image(INSIDE)]},
            "content[0].image_url",
        ),
        (
            {
                "type": "computer_call_output",
                "call_id": "c",
                "output": {"type": "computer_screenshot", "image_url": INSIDE},
            },
            "image_url",
        ),
    ],
)
async def test_an_address_that_may_not_be_named_is_refused_wherever_it_stands(item: dict[str, Any], param: str) -> None:
    async with serving(engine()) as server:
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": [CALL, item]})
        kept = await server.ask("POST", "/v1/conversations", {"items": [item]})
    assert (reply.status, reply.error["param"]) == (400, f"input[1].{param}")
    assert (kept.status, kept.error["param"]) == (400, f"items[0].{param}")
    assert "limits.media_hosts" in reply.error["message"]


@pytest.mark.parametrize("url", ["data:image/png;base64,AAAA", "https://example.com/a.png"])
async def test_a_picture_by_a_public_address_or_by_its_bytes_is_passed_on(url: str) -> None:
    async with serving(engine()) as server:
        asked = {"model": "scripted", "input": [{"role": "user", "content": [image(url)]}]}
        reply = await server.ask("POST", RESPONSES, asked)
    assert reply.status == 200


async def test_a_setting_allows_hosts_of_the_operators_own() -> None:
    async with serving(engine("169.254.169.254")) as server:
        asked = {"model": "scripted", "input": [{"role": "user", "content": [image(INSIDE)]}]}
        assert (await server.ask("POST", RESPONSES, asked)).status == 200


def test_a_setting_that_names_no_host_is_a_problem() -> None:
    settings = Settings(limits=Limits(media_hosts=("example.com", "http://example.com")))
    assert [problem.path for problem in find_network_problems(settings)] == ["limits.media_hosts[1]"]


# ---- how addresses are written ----


@pytest.mark.parametrize(
    "url",
    [
        *(url for url in EVIL if len(url) <= MAX_URL_CHARACTERS and "example" not in url),
        "http://example.com/a.png",
        "HTTP://EXAMPLE.COM/a.png",
        "file:///etc/passwd",
        "FILE:/etc/passwd",
        "ftp://example.com/a.png",
        "//example.com/a.png",
        "/a.png",
        "",
        " https://example.com/a.png",
        "https://example.com\\@127.0.0.1/a.png",
        "https://user@example.com/a.png",
    ],
)
def test_other_addresses_are_refused_however_they_are_written(url: str) -> None:
    with pytest.raises(AddressNotAllowed):
        MediaHosts().check(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a.png",
        "HTTPS://example.com:8443/a.png?size=1#part",
        f"https://example.com/a.png?signature={'x' * 4000}",
        "https://93.184.216.34/a.png",
        "https://[2606:2800:220:1::1]/a.png",
        "https://bücher.example/a b.png",
        "data:image/png;base64,AAAA",
        "DATA:,x",
    ],
)
def test_public_addresses_and_data_are_taken(url: str) -> None:
    MediaHosts().check(url)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("media.example.com", "http://media.example.com/a.png"),
        ("*.example.com", "http://media.example.com/a.png"),
        ("localhost:9000", "http://localhost:9000/a.png"),
        ("10.1.0.0/16", "http://10.1.2.3/a.png"),
        ("*", "http://127.0.0.1/a.png"),
        ("*", "file:///srv/a.png"),
    ],
)
def test_what_is_allowed_is_taken_and_nothing_beside_it(host: str, url: str) -> None:
    hosts = MediaHosts([host])
    hosts.check(url)
    if host != "*":
        for other in ("http://example.org/a.png", "https://127.0.0.1/a.png", "http://localhost/a.png"):
            with pytest.raises(AddressNotAllowed):
                hosts.check(other)


async def test_credentials_in_an_address_are_refused_without_a_word_of_fields_that_parts_do_not_have() -> None:
    async with serving(engine()) as server:
        said = {"role": "user", "content": [image("https://ada:secret@example.com/cat.png")]}
        reply = await server.ask("POST", RESPONSES, {"model": "scripted", "input": [said]})
    assert reply.error["message"] == "Invalid 'input[0].content[0].image_url': must not hold credentials."
