"""From what a request declares to how the server is reached."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import read_request
from antwort.api.tools import McpTool
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS, Identity
from antwort.tools.mcp.base import ClientCredentials, ServerSpec
from antwort.tools.mcp.servers import (
    Audience,
    McpPolicy,
    McpServer,
    base_spec,
    needed_to_reach,
    own_spec,
    untrusted_spec,
)

ANNE, BOB = Identity("acme", "anne"), Identity("acme", "bob")
OPEN = McpPolicy(declared=True)
URL = "https://tools.example.com/mcp"


def declare(**fields: Any) -> McpTool:
    declared = {"type": "mcp", "server_label": "docs", **fields}
    (tool,) = read_request({"model": "m", "input": "x", "tools": [declared]}, Limits()).tools
    assert isinstance(tool, McpTool)
    return tool


def spec_for(server: McpServer, identity: Identity = ANNE, **fields: Any) -> ServerSpec:
    return own_spec(server, base_spec(server, McpPolicy()), declare(**fields), identity)


def test_a_token_is_sent_as_a_bearers() -> None:
    server = McpServer("docs", url=URL, token="hush", headers={"X-Team": "a"})
    assert spec_for(server).headers == {"X-Team": "a", "Authorization": "Bearer hush"}


def test_all_share_the_operators_session_unless_it_is_each_ones_own() -> None:
    shared, own = McpServer("docs", url=URL), McpServer("docs", url=URL, sessions="identity")
    assert spec_for(shared, ANNE).key == spec_for(shared, BOB).key
    assert spec_for(own, ANNE).key != spec_for(own, BOB).key
    assert spec_for(own, ANNE).owner == ("acme", "anne")


def test_a_command_is_a_process_of_ours() -> None:
    spec = spec_for(McpServer("docs", command=("run", "it"), env={"KEY": "hush"}, folder="/srv"))
    assert (spec.transport, spec.command, spec.env, spec.folder) == ("stdio", ("run", "it"), {"KEY": "hush"}, "/srv")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"server_url": "https://elsewhere.example.com/mcp"}, "server_url"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"authorization": "mine"}, "authorization"),
        ({"headers": {"X-User": "root"}}, "headers"),
    ],
)
def test_a_request_may_not_change_how_the_operators_server_is_reached(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        spec_for(McpServer("docs", url=URL), **fields)
    assert (caught.value.param, caught.value.code) == (field, "unexpected_parameter")
    assert "example.com" not in caught.value.message


def test_a_command_has_no_address_to_name() -> None:
    with pytest.raises(InvalidField, match="server_url"):
        spec_for(McpServer("docs", command=("run",)), server_url=URL)


def test_a_request_may_say_what_is_so_anyway() -> None:
    server = McpServer("docs", url=URL)
    assert spec_for(server, server_url=f"{URL}/", connector_id="docs", headers={}) == spec_for(server)


@pytest.mark.parametrize(
    "fields",
    [{"authorization": "mine"}, {"headers": {"authorization": "Bearer mine"}}, {"authorization": "Bearer mine"}],
)
def test_a_request_brings_its_own_credentials_where_the_operator_says_so(fields: dict[str, Any]) -> None:
    spec = spec_for(McpServer("docs", url=URL, authorization="request", headers={"X-Team": "a"}), **fields)
    assert spec.headers == {"X-Team": "a", "Authorization": "Bearer mine"}
    assert spec.owner == ("acme", "anne")


def test_other_headers_are_not_passed_on_to_the_operators_server() -> None:
    with pytest.raises(InvalidField, match=r"headers\.X-User"):
        spec_for(McpServer("docs", url=URL, authorization="request"), headers={"X-User": "root"})


def test_a_server_that_wants_a_requests_credentials_has_a_session_for_each_identity_without_them() -> None:
    server = McpServer("docs", url=URL, authorization="request")
    assert spec_for(server, ANNE).key != spec_for(server, BOB).key


def test_the_same_credentials_of_two_identities_are_two_sessions() -> None:
    server = McpServer("docs", url=URL, authorization="request")
    assert spec_for(server, ANNE, authorization="same").key != spec_for(server, BOB, authorization="same").key
    stranger = declare(server_url=URL, authorization="same")
    assert untrusted_spec(stranger, ANNE, OPEN).key != untrusted_spec(stranger, BOB, OPEN).key


def test_a_strangers_server_is_reached_as_the_request_says() -> None:
    spec = untrusted_spec(declare(server_url=URL, headers={"X-Key": "k"}, authorization="mine"), ANNE, OPEN)
    assert (spec.url, spec.transport, spec.is_untrusted, spec.owner) == (URL, "http", True, ("acme", "anne"))
    assert spec.headers == {"X-Key": "k", "Authorization": "Bearer mine"}


@pytest.mark.parametrize("url", ["https://tools.example.com/sse", "https://tools.example.com/a/sse/?key=x"])
def test_an_address_that_ends_in_sse_is_of_the_older_kind(url: str) -> None:
    assert untrusted_spec(declare(server_url=url), ANNE, OPEN).transport == "sse"


@pytest.mark.parametrize(
    ("fields", "policy", "param", "code"),
    [
        ({"server_url": URL}, McpPolicy(), "server_url", "unsupported_parameter"),
        ({"server_url": "http://127.0.0.1/mcp"}, OPEN, "server_url", "server_not_allowed"),
        ({"server_url": "stdio:///bin/sh"}, OPEN, "server_url", "server_not_allowed"),
        ({"server_url": URL, "connector_id": "connector_gmail"}, OPEN, "connector_id", "unexpected_parameter"),
    ],
)
def test_what_may_not_be_named_is_refused(fields: dict[str, Any], policy: McpPolicy, param: str, code: str) -> None:
    with pytest.raises(InvalidField) as caught:
        untrusted_spec(declare(**fields), ANNE, policy)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_what_is_remembered_reaches_the_same_session() -> None:
    declared = declare(server_url=URL, headers={"X-Key": "k"}, allowed_tools=["a"], require_approval="never")
    kept = needed_to_reach(declared)
    assert untrusted_spec(kept, ANNE, OPEN).key == untrusted_spec(declared, ANNE, OPEN).key
    assert kept == needed_to_reach(declare(server_url=URL, headers={"X-Key": "k"}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"url": URL, "command": ("run",)},
        {"url": URL, "token": "a", "authorization": "request"},
        {"url": URL, "token": "a", "oauth": ClientCredentials(client_id="a", client_secret="b")},
        {"command": ("run",), "token": "a"},
        {"url": URL, "headers": {"authorization": "Basic a"}, "token": "a"},
        {"url": URL, "headers": {"AUTHORIZATION": "Basic a"}, "authorization": "request"},
        {
            "url": URL,
            "headers": {"Authorization": "a"},
            "oauth": ClientCredentials(client_id="a", client_secret="b"),
        },
        {"command": "run it"},
    ],
)
def test_a_server_that_does_not_go_together_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="The MCP server 'docs' "):
        McpServer("docs", **fields)


@pytest.mark.parametrize("label", ["antwort", "", "a b", "x" * 65])
def test_not_every_label_can_be_one(label: str) -> None:
    with pytest.raises(ValueError, match="needs another label"):
        McpServer(label, url=URL)


def test_no_secret_shows_in_a_repr() -> None:
    server = McpServer("docs", url=f"{URL}?key=hush", token="hush")
    assert "hush" not in f"{server!r} {base_spec(server, OPEN)!r} {declare(server_url=URL, authorization='hush')!r}"


@pytest.mark.parametrize(
    ("audience", "model", "identity", "is_in"),
    [
        (Audience(), "any", ANONYMOUS, True),
        (Audience(models=("qwen*",)), "qwen3", ANONYMOUS, True),
        (Audience(models=("qwen",)), "qwen3", ANONYMOUS, False),
        (Audience(models=("qwen3",), subjects=("anne",)), "qwen3", BOB, False),
        (Audience(subjects=("anne",)), "any", ANNE, True),
        (Audience(tenants=("acme",)), "any", ANONYMOUS, False),
        (Audience(tenants=("acme",), subjects=("bob",)), "any", BOB, True),
    ],
)
def test_a_server_stands_for_those_whom_all_of_it_fits(
    audience: Audience, model: str, identity: Identity, is_in: bool
) -> None:
    assert audience.has(model, identity) is is_in
