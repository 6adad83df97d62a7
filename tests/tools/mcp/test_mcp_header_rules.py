"""Headers that a request brings for a server that it names."""

from __future__ import annotations

import pytest

from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.errors import InvalidField
from antwort.tools.mcp.servers import MAX_HEADER_CHARACTERS, MAX_HEADERS, HeaderRules


def declared(headers: dict[str, str] | None = None, authorization: str | None = None) -> McpTool:
    return McpTool(
        server_label="depot",
        server_url="https://tools.example.com/mcp",
        headers=UNSET if headers is None else headers,
        authorization=UNSET if authorization is None else authorization,
    )


def fault(tool: McpTool, rules: HeaderRules | None = None) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        (rules or HeaderRules()).check(tool)
    return caught.value


@pytest.mark.parametrize(
    ("headers", "authorization", "sent"),
    [
        (None, None, {}),
        ({}, None, {}),
        ({"X-Key": "1", "Cookie": "a=b"}, None, {"X-Key": "1", "Cookie": "a=b"}),
        ({"Authorization": "Basic abc"}, None, {"Authorization": "Basic abc"}),
        (None, "sesame", {"Authorization": "Bearer sesame"}),
        (None, "bearer sesame", {"Authorization": "bearer sesame"}),
        (None, "Basic YTpi", {"Authorization": "Basic YTpi"}),
        ({"X-Empty": ""}, "sesame", {"X-Empty": "", "Authorization": "Bearer sesame"}),
    ],
)
def test_what_is_sent(headers: dict[str, str] | None, authorization: str | None, sent: dict[str, str]) -> None:
    assert HeaderRules().check(declared(headers, authorization)) == sent


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "HOST", "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Expect"),
        *("Content-Length", "Content-Type", "content-encoding", "Proxy-Authorization", "Proxy-Connection", "Via"),
        *("Accept", "Accept-Encoding", "User-Agent", "Range", "HTTP2-Settings"),
        *("Mcp-Session-Id", "mcp-protocol-version", "Last-Event-ID"),
    ],
)
def test_what_belongs_to_the_protocols_is_never_a_requests(name: str) -> None:
    assert fault(declared({name: "x"}), HeaderRules(allow=["*", name])).param == f"headers.{name}"


@pytest.mark.parametrize("name", ["", "X Key", "X:Key", "X-Kéy", "X\r\nHost", "X\0", "x" * 300])
def test_a_name_that_no_header_can_have_is_told_and_not_repeated(name: str) -> None:
    found = fault(declared({name: "x"}))
    assert found.param == "headers"
    assert "Host" not in found.message


@pytest.mark.parametrize("value", ["a\r\nHost: x", "a\nb", "\0", "ü", " a", "a ", "\x7f", "a\tb"])
def test_a_value_that_cannot_be_sent_is_told_and_not_repeated(value: str) -> None:
    found = fault(declared({"X-Key": f"sesame{value}x" if value.strip() == value else value}))
    assert found.param == "headers.X-Key"
    assert "sesame" not in found.message
    assert fault(declared(authorization=value)).param == "authorization"


@pytest.mark.parametrize("authorization", ["", "x" * (MAX_HEADER_CHARACTERS + 1)])
def test_an_authorization_must_be_one(authorization: str) -> None:
    assert fault(declared(authorization=authorization)).param == "authorization"


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({f"X-{i}": "x" for i in range(MAX_HEADERS + 1)}, "headers"),
        ({"X-Key": "x" * (MAX_HEADER_CHARACTERS + 1)}, "headers.X-Key"),
        ({f"X-{i}": "x" * MAX_HEADER_CHARACTERS for i in range(5)}, "headers"),
        ({"X-Key": "1", "x-key": "2"}, "headers"),
    ],
    ids=["many", "long", "long together", "twice"],
)
def test_there_are_only_so_many_and_each_once(headers: dict[str, str], param: str) -> None:
    assert fault(declared(headers)).param == param


def test_credentials_come_in_one_place() -> None:
    assert fault(declared({"authorization": "Bearer a"}, "b")).param == "authorization"


def test_the_operator_says_which_may_be_sent() -> None:
    rules = HeaderRules(allow=["Authorization", "X-*"], deny=["x-forwarded-*"])
    assert rules.check(declared({"x-key": "1"}, "sesame")) == {"x-key": "1", "Authorization": "Bearer sesame"}
    assert fault(declared({"Cookie": "a=b"}), rules).param == "headers.Cookie"
    assert fault(declared({"X-Forwarded-For": "::1"}), rules).param == "headers.X-Forwarded-For"


def test_an_authorization_is_a_header_that_may_be_denied() -> None:
    assert fault(declared(authorization="sesame"), HeaderRules(deny=["Authorization"])).param == "authorization"
