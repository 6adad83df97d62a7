"""The tools that a request declares, in the shapes that clients send, and what it says about their use."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import CreateRequest, read_request
from antwort.api.tools import (
    AllowedTools,
    CustomTool,
    ForcedCustom,
    ForcedFunction,
    ForcedHosted,
    FunctionTool,
    GrammarInput,
    McpTool,
    NamedTool,
    NamespaceTool,
    OpaqueTool,
    TextInput,
)
from antwort.api.wire import replace
from antwort.errors import InvalidField


def asked(*tools: object, limit: int = 128, **fields: Any) -> CreateRequest:
    return read_request({"input": "Hi", "tools": list(tools), **fields}, Limits(tools=limit))


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **fields}


def custom(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "name": name, **fields}


def namespace(name: str, *tools: object, **fields: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools), **fields}


def fault(*tools: object, **fields: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        asked(*tools, **fields)
    return caught.value


# ---- functions ----


def test_a_function_is_read_as_clients_write_it() -> None:
    parameters = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}}
    extra = {"async": True, "defer_loading": False, "allowed_callers": ["direct"], "output_schema": {"type": "string"}}
    (tool,) = asked(function("add", strict=True, description=None, parameters=parameters, **extra)).tools
    declared = FunctionTool(name="add", parameters=parameters, strict=True, defer_loading=False)
    assert tool == replace(declared, allowed_callers=("direct",))


# ---- free-form tools ----


@pytest.mark.parametrize("form", [{}, {"format": None}, {"format": {"type": "text"}}])
def test_a_free_form_tool_takes_text_unless_it_says_otherwise(form: dict[str, Any]) -> None:
    (tool,) = asked(custom("note", description=None, async_=True, **form)).tools
    assert tool == CustomTool(name="note", format=TextInput())


@pytest.mark.parametrize("syntax", ["lark", "regex"])
def test_a_free_form_tool_may_have_a_grammar(syntax: str) -> None:
    (tool,) = asked(custom("note", format={"type": "grammar", "syntax": syntax, "definition": "a"})).tools
    assert isinstance(tool, CustomTool)
    assert tool.format == GrammarInput(syntax="lark" if syntax == "lark" else "regex", definition="a")


def test_a_free_form_tool_may_be_nested_as_chat_completions_does() -> None:
    (tool,) = asked({"type": "custom", "custom": {"name": "note", "description": "Notes."}}).tools
    assert tool == CustomTool(name="note", description="Notes.")


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_grammar_may_be_nested_as_chat_completions_does(is_nested: bool) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
    note = {"name": "note", "format": form}
    (tool,) = asked({"type": "custom", "custom": note} if is_nested else {"type": "custom", **note}).tools
    assert tool == CustomTool(name="note", format=GrammarInput(syntax="regex", definition="a+"))


@pytest.mark.parametrize(
    ("form", "path"),
    [
        ({"type": "xml"}, "tools[0].format.type"),
        ({}, "tools[0].format.type"),
        ("text", "tools[0].format"),
        ({"type": "grammar", "syntax": "ebnf", "definition": "a"}, "tools[0].format.syntax"),
        ({"type": "grammar", "definition": "a"}, "tools[0].format.syntax"),
        ({"type": "grammar", "syntax": "lark"}, "tools[0].format.definition"),
        ({"type": "grammar", "grammar": {"syntax": "lark"}}, "tools[0].format.definition"),
        ({"type": "grammar", "grammar": "a"}, "tools[0].format.syntax"),
        ({"type": "grammar", "syntax": "lark", "definition": 5}, "tools[0].format.definition"),
    ],
)
def test_a_format_that_nobody_knows_is_refused_by_its_path(form: object, path: str) -> None:
    assert fault(custom("note", format=form)).param == path


# ---- namespaces ----


def test_a_namespace_holds_functions_and_free_form_tools() -> None:
    (tool,) = asked(namespace("crm", function("find", defer_loading=True), custom("note"), description="CRM.")).tools
    tools = (FunctionTool(name="find", defer_loading=True), CustomTool(name="note"))
    assert tool == NamespaceTool(name="crm", description="CRM.", tools=tools)


def test_what_a_namespace_cannot_hold_is_left_to_policy_like_any_other_type() -> None:
    inner = {"type": "web_search"}
    first, second, third = asked(namespace("crm", inner, function("find")), function("add")).tools
    assert first == NamespaceTool(name="crm", tools=(FunctionTool(name="find"),))
    assert second == FunctionTool(name="add")
    assert isinstance(third, OpaqueTool)
    assert (third, third.path) == (OpaqueTool("web_search", inner), "tools[0].tools[0]")


@pytest.mark.parametrize("kind", ["mcp", "namespace"])
def test_neither_servers_nor_namespaces_stand_within_a_namespace(kind: str) -> None:
    inner = {"type": kind, "name": "x", "tools": [], "server_label": "s"}
    assert asked(namespace("crm", inner)).tools == (NamespaceTool(name="crm", tools=()), OpaqueTool(kind, inner))


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        (namespace("a b"), "tools[0].name"),
        ({"type": "namespace", "tools": []}, "tools[0].name"),
        ({"type": "namespace", "name": "crm"}, "tools[0].tools"),
        ({"type": "namespace", "name": "crm", "tools": {}}, "tools[0].tools"),
        (namespace("crm", "find"), "tools[0].tools[0]"),
        (namespace("crm", function("find"), {"name": "x"}), "tools[0].tools[1].type"),
        (namespace("crm", function("a b")), "tools[0].tools[0].name"),
        (namespace("crm", custom("")), "tools[0].tools[0].name"),
        (namespace("crm", custom("x", format={"type": "y"})), "tools[0].tools[0].format.type"),
    ],
)
def test_what_is_wrong_in_a_namespace_is_named_by_its_path(tool: dict[str, Any], path: str) -> None:
    assert fault(tool).param == path


# ---- names and numbers ----


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ([function("x"), custom("x")], "tools[1].name"),
        ([custom("x"), custom("x")], "tools[1].name"),
        ([namespace("a", function("x"), custom("x"))], "tools[0].tools[1].name"),
        ([namespace("a", function("x")), namespace("a", function("x"))], "tools[1].tools[0].name"),
    ],
)
def test_two_tools_of_one_name_are_refused(tools: list[object], path: str) -> None:
    problem = fault(*tools)
    assert (problem.param, problem.code) == (path, "duplicate_tool")


def test_the_same_name_in_another_namespace_is_another_tool() -> None:
    tools = [function("x"), namespace("x", function("x")), namespace("a", function("x")), namespace("a", custom("y"))]
    assert len(asked(*tools).tools) == 4


@pytest.mark.proves("CP-040")
def test_tools_within_namespaces_count() -> None:
    tools = [namespace("a", function("x"), function("y")), function("z")]
    assert len(asked(*tools, limit=3).tools) == 2
    assert fault(*tools, namespace("b"), limit=3).code == "too_many_tools"
    assert fault(*tools, limit=2).code == "too_many_tools"


def server(label: str = "s", **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, **fields}


def test_only_so_many_servers_are_named_by_address() -> None:
    servers = [server(f"s{at}", server_url=f"https://s{at}.example.com/mcp") for at in range(17)]
    assert len(asked(*servers[:16], server("own"), server("more")).tools) == 18
    problem = fault(function("x"), *servers)
    assert (problem.param, problem.code) == ("tools[17].server_url", "too_many_tools")
    assert "17 servers are named by address; at most 16 are allowed." in problem.message


@pytest.mark.parametrize("label", ["depot", "GitHub_2", "my.server", "a-b", "x" * 64])
def test_a_server_has_a_label_that_can_be_shown(label: str) -> None:
    assert asked(server(label)).tools == (McpTool(server_label=label),)


@pytest.mark.parametrize("label", ["", "a b", "x" * 65, "x\n", "\u202e", "a\x1b[31m", "a/b", "größe"])
def test_a_label_that_is_none_is_told(label: str) -> None:
    problem = fault(function("x"), server(label))
    assert problem.param == "tools[1].server_label"
    assert problem.message.endswith("expected 1 to 64 letters, digits, '_', '-' or '.'.")


# ---- choosing ----


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"type": "function", "name": "x", "namespace": None}, ForcedFunction(name="x")),
        ({"type": "function", "name": "x", "namespace": "a"}, ForcedFunction(name="x", namespace="a")),
        ({"type": "custom", "name": "x"}, ForcedCustom(name="x")),
        ({"type": "custom", "custom": {"name": "x"}}, ForcedCustom(name="x")),
        ({"type": "custom", "name": "x", "namespace": "a"}, ForcedCustom(name="x", namespace="a")),
        ({"type": "web_search_preview"}, ForcedHosted(type="web_search_preview")),
        ({"type": "image_generation", "size": "big"}, ForcedHosted(type="image_generation")),
    ],
)
def test_a_tool_may_be_forced_by_name_namespace_or_type(given: dict[str, Any], read: object) -> None:
    assert asked(tool_choice=given).tool_choice == read


@pytest.mark.parametrize("wrong", [{"name": 5}, {"name": "x", "namespace": 5}, {}])
def test_a_forced_free_form_tool_is_named(wrong: dict[str, Any]) -> None:
    field = "namespace" if "namespace" in wrong else "name"
    assert fault(tool_choice={"type": "custom", **wrong}).param == f"tool_choice.{field}"


def test_allowed_tools_are_named_as_openai_has_them() -> None:
    tools = [
        {"type": "function", "name": "f", "namespace": "a"},
        {"type": "custom", "name": "c"},
        {"type": "web_search", "name": None},
        {"type": "mcp", "server_label": "depot"},
    ]
    choice = asked(tool_choice={"type": "allowed_tools", "mode": "required", "tools": tools}).tool_choice
    assert isinstance(choice, AllowedTools)
    assert choice.tools == (
        NamedTool(type="function", name="f", namespace="a"),
        NamedTool(type="custom", name="c"),
        NamedTool(type="web_search"),
        NamedTool(type="mcp", server_label="depot"),
    )


@pytest.mark.parametrize("kind", ["function", "custom", "namespace", "mcp"])
def test_an_entry_that_names_nothing_is_refused(kind: str) -> None:
    tools = [{"type": "web_search"}, {"type": kind}]
    assert fault(tool_choice={"type": "allowed_tools", "tools": tools}).param == "tool_choice.tools[1].name"
    assert fault(allowed_tools=tools).param == "allowed_tools[1].name"
