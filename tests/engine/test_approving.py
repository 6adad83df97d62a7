"""Which calls the client must approve."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import read_request
from antwort.api.tools import McpTool
from antwort.engine.history.approvals import is_asked, unasked, with_approvals
from antwort.errors import InvalidField
from antwort.tools.base import ToolDefinition, ToolKind


def declared(wanted: object) -> McpTool:
    plain: dict[str, Any] = {"type": "mcp", "server_label": "depot", "require_approval": wanted}
    (found,) = read_request({"model": "m", "input": "x", "tools": [plain]}, Limits()).tools
    assert isinstance(found, McpTool)
    return found


def offered(name: str, *, demanded: bool | None, read_only: bool = False) -> ToolDefinition:
    return ToolDefinition(
        name=f"depot_{name}",
        server_tool=name,
        kind=ToolKind.MCP,
        server_label="depot",
        needs_approval=demanded,
        read_only=read_only,
    )


def guarded(wanted: object, demanded: bool | None = False) -> set[str]:
    """The tools whose calls must be approved, of one that reads and two that write."""
    tools = [
        offered("look", demanded=demanded, read_only=True),
        offered("ship", demanded=demanded),
        offered("wipe", demanded=demanded),
    ]
    return {tool.own_name for tool in with_approvals(declared(wanted), tools) if tool.needs_approval}


ALL, NONE = {"look", "ship", "wipe"}, set[str]()


@pytest.mark.parametrize(
    ("wanted", "unless_said", "if_asked"),
    [
        (None, ALL, NONE),
        ("always", ALL, ALL),
        ("never", NONE, NONE),
        ({}, ALL, NONE),
        ({"always": {"tool_names": ["ship"]}}, ALL, {"ship"}),
        ({"never": {"tool_names": ["ship"]}}, {"look", "wipe"}, {"look", "wipe"}),
        ({"never": {"read_only": True}}, {"ship", "wipe"}, {"ship", "wipe"}),
        ({"always": {"read_only": False}}, ALL, {"ship", "wipe"}),
        ({"never": {"read_only": False, "tool_names": ["look", "ship"]}}, {"look", "wipe"}, {"look", "wipe"}),
        ({"always": {"tool_names": ["ship"]}, "never": {"tool_names": ["ship", "look"]}}, {"ship", "wipe"}, None),
        ({"always": None, "never": {"tool_names": ["ship"], "read_only": None}}, {"look", "wipe"}, None),
        ({"never": {}}, ALL, ALL),
        ({"always": {}}, ALL, NONE),
        ({"always": {"tool_names": []}}, ALL, NONE),
    ],
)
def test_what_a_request_says_holds_above_what_the_operator_leaves_open(
    wanted: object, unless_said: set[str], if_asked: set[str] | None
) -> None:
    assert guarded(wanted, None) == unless_said
    assert guarded(wanted, demanded=False) == (unless_said if if_asked is None else if_asked)


@pytest.mark.parametrize("wanted", [None, "always", "never", {"never": {"tool_names": ["look", "ship", "wipe"]}}])
def test_what_the_operator_demands_no_request_takes_away(wanted: object) -> None:
    assert guarded(wanted, demanded=True) == ALL


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ("sometimes", "require_approval"),
        (True, "require_approval"),
        (["ship"], "require_approval"),
        ({"sometimes": {}}, "require_approval"),
        ({"always": ["ship"]}, "require_approval.always"),
        ({"always": {"tools": ["ship"]}}, "require_approval.always"),
        ({"always": {"tool_names": "ship"}}, "require_approval.always.tool_names"),
        ({"never": {"tool_names": [1]}}, "require_approval.never.tool_names[0]"),
        ({"never": {"read_only": "yes"}}, "require_approval.never.read_only"),
    ],
)
def test_what_is_not_understood_is_a_fault_and_not_passed_over(wanted: object, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        declared(wanted)
    assert caught.value.param == f"tools[0].{param}"


@pytest.mark.parametrize(
    ("left", "arguments", "before", "is_so"),
    [
        (None, "{}", 99, True),
        (2, '{"box": 7}', 1, True),
        (2, "{}", 2, False),
        (0, "{}", 0, False),
        (2, " ", 0, True),
        (2, '{"box"', 0, False),
        (2, "[]", 0, False),
        (2, "[" * 100_000, 0, False),
    ],
)
def test_who_is_asked_about_a_call(left: int | None, arguments: str, before: int, is_so: bool) -> None:
    assert is_asked(left, arguments, before) is is_so


def test_why_nobody_is_asked_is_said_in_words_for_the_model() -> None:
    assert unasked('{"box": 7}') is None
    assert (unasked("{") or "").startswith("The arguments are not valid JSON: ")
    assert unasked("7") == "The arguments must be a JSON object."


def test_a_request_settles_whether_a_tool_needs_approval() -> None:
    tool = offered("ship", demanded=None)
    (never,), (always,) = (with_approvals(declared(each), [tool]) for each in ("never", "always"))
    assert (never.needs_approval, always.needs_approval, tool.needs_approval) == (False, True, None)
    (demanded,) = with_approvals(declared("never"), [strict := offered("ship", demanded=True)])
    assert demanded is strict
