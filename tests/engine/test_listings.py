"""What servers offer, as a response shows it."""

from __future__ import annotations

import msgspec

from antwort.api.items import McpListTools, McpToolInfo
from antwort.api.wire import UNSET
from antwort.engine.prompt.discovery import shortened

LONGEST = 256 * 1024


def listing(number: int, schema: int = 0, about: int = 0) -> McpListTools:
    """So many tools, with a schema and a description of so many letters."""
    tools = (
        McpToolInfo(
            name=f"tool_{n}",
            input_schema={"type": "object", "properties": {"x" * schema: {"type": "string"}}},
            description="y" * about,
            annotations={"readOnlyHint": True},
        )
        for n in range(number)
    )
    return McpListTools(id="mcpl_1", server_label="depot", tools=tuple(tools))


def test_a_list_that_is_not_too_long_is_shown_as_it_is() -> None:
    whole = listing(200, schema=500, about=100)
    assert shortened(whole) is whole


def test_a_long_list_is_shown_without_schemas() -> None:
    shown = shortened(listing(1000, schema=500, about=100))
    assert [tool.name for tool in shown.tools] == [f"tool_{n}" for n in range(1000)]
    assert shown.tools[0] == McpToolInfo(name="tool_0", input_schema={"type": "object"}, description="y" * 100)


def test_one_tool_with_a_schema_without_end_is_shown_without_it() -> None:
    shown = shortened(listing(1, schema=10**6, about=1000))
    assert shown.tools == (McpToolInfo(name="tool_0", input_schema={"type": "object"}, description="y" * 200 + "…"),)


def test_a_longer_one_is_shown_by_names_alone() -> None:
    shown = shortened(listing(2000, about=1000))
    assert len(shown.tools) == 2000
    assert {tool.description for tool in shown.tools} == {UNSET}


def test_of_a_list_without_end_there_is_as_much_as_fits() -> None:
    shown = shortened(listing(20_000))
    assert 1000 < len(shown.tools) < 20_000
    assert len(msgspec.json.encode(shown.tools)) <= LONGEST
