"""Which addresses are taken for one server."""

from __future__ import annotations

import pytest

from antwort.tools.mcp.base import canonical_address


@pytest.mark.parametrize(
    "url",
    [
        "https://Docs.Example.com/mcp",
        "https://docs.example.com./mcp",
        "https://docs.example.com:443/mcp",
        "http://docs.example.com/mcp",
        "https://docs.example.com/mcp/",
        "https://docs.example.com//mcp",
        "https://docs.example.com/./x/../mcp",
        "https://docs.example.com/%6dcp",
        "https://docs.example.com/%6Dcp",
        "https://docs.example.com/%256dcp",
        "https://docs.example.com/x/%2e%2e/mcp",
        "https://docs.example.com/MCP",
        "https://docs.example.com/mcp;v=1",
        "https://docs.example.com/mcp?key=1",
        "https://docs.example.com/%2fmcp",
        "https://\uff44ocs.example.com/mcp",
    ],
)
def test_one_server_however_its_address_is_written(url: str) -> None:
    assert canonical_address(url) == canonical_address("https://docs.example.com/mcp")


@pytest.mark.parametrize(
    "url",
    [
        "https://docs.example.com/",
        "https://docs.example.com/mcp/v2",
        "https://docs.example.com/v2/mcp",
        "https://docs.example.com:8443/mcp",
        "https://docs.example.org/mcp",
        "https://mcp.docs.example.com/mcp",
        "https://docs.example.com/mcp%3Fx",
    ],
)
def test_other_servers_are_others(url: str) -> None:
    assert canonical_address(url) != canonical_address("https://docs.example.com/mcp")


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST.", "a.localhost"),
        *("127.0.0.1", "127.1", "2130706433", "0x7f.1", "127.8.9.10", "0.0.0.0"),
        *("[::1]", "[::ffff:127.0.0.1]", "[::]"),
    ],
)
def test_this_machine_is_one_whatever_it_is_called(host: str) -> None:
    assert canonical_address(f"http://{host}:8001/mcp") == "localhost:8001/mcp"


def test_an_address_by_number_is_itself_however_it_is_written() -> None:
    for host in ("10.1.2.3", "10.1.515", "[::ffff:10.1.2.3]"):
        assert canonical_address(f"http://{host}/mcp") == "10.1.2.3/mcp"
