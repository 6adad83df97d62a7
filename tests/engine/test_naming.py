"""What the model calls the tools."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.prompt.tool_names import labelled_name, legal_name, named_apart
from antwort.tools.base import ToolDefinition, ToolKind

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")


def function(name: str) -> ToolDefinition:
    return ToolDefinition(name=name, kind=ToolKind.FUNCTION)


def of(label: str, name: str, server_tool: str | None = None) -> ToolDefinition:
    return ToolDefinition(name=name, kind=ToolKind.MCP, server_label=label, server_tool=server_tool)


def custom(name: str) -> ToolDefinition:
    return ToolDefinition(name=name, kind=ToolKind.CUSTOM)


def within(namespace: str, name: str, kind: ToolKind = ToolKind.FUNCTION) -> ToolDefinition:
    seen_as = labelled_name(namespace, name)
    return ToolDefinition(name=seen_as, kind=kind, server_tool=name, namespace=namespace)


def seen(*found: ToolDefinition) -> dict[str, tuple[str | None, str]]:
    return {name: (tool.server_label, tool.own_name) for name, tool in named_apart(found).items()}


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ([of("calc", "add"), of("maths", "sub")], ["add", "sub"]),
        ([of("calc", "add"), of("maths", "add")], ["calc__add", "maths__add"]),
        ([of("calc", "add"), function("add")], ["calc__add", "add"]),
        ([function("add"), of("calc", "add"), of("maths", "add")], ["add", "calc__add", "maths__add"]),
        ([of("calc", "add"), of("calc", "add")], ["add"]),
        ([of("calc", "c_add", "add"), of("maths", "c_add")], ["calc__add", "maths__c_add"]),
        ([of("calc", "add"), function("add"), function("calc__add")], ["calc__add_2", "add", "calc__add"]),
        ([of("a", "b__c"), of("a__b", "c"), function("b__c"), function("c")], ["a__b__c", "a__b__c_2", "b__c", "c"]),
    ],
    ids=[
        "different",
        "of two servers",
        "the request's own",
        "all three",
        "one server twice",
        "a server's own prefix",
        "the made-up name is taken",
        "two made-up names are one",
    ],
)
def test_names_are_told_apart_by_label(found: list[ToolDefinition], names: list[str]) -> None:
    assert list(seen(*found)) == names


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ([within("crm", "find"), within("erp", "find"), function("find")], ["crm__find", "erp__find", "find"]),
        ([within("a", "x"), function("a__x")], ["a__x_2", "a__x"]),
        ([custom("a__x"), within("a", "x"), within("a", "x", ToolKind.CUSTOM)], ["a__x", "a__x_2"]),
        ([within("a", "b__c"), within("a__b", "c")], ["a__b__c", "a__b__c_2"]),
        ([of("s", "a__x"), within("a", "x")], ["s__a__x", "a__x"]),
        ([of("a", "x"), of("b", "x"), within("a", "x")], ["a__x_2", "b__x", "a__x"]),
    ],
    ids=["apart", "a function has the name", "a free-form tool has it", "two are one", "a server", "a server's label"],
)
def test_tools_in_namespaces_go_by_both_names(found: list[ToolDefinition], names: list[str]) -> None:
    assert list(named_apart(found)) == names


def test_a_servers_tool_is_still_known_by_label_and_own_name() -> None:
    assert seen(of("calc", "add"), of("maths", "add")) == {"calc__add": ("calc", "add"), "maths__add": ("maths", "add")}


def test_what_a_backend_would_refuse_is_written_otherwise_and_stays_apart() -> None:
    names = list(seen(of("files", "a.b"), of("files", "a/b"), of("files", "x" * 70), of("files", "x" * 71)))
    assert len(names) == 4
    assert all(LEGAL.fullmatch(name) for name in names)
    assert names[0].startswith("a_b_")


def test_names_that_differ_by_their_case_alone_are_different() -> None:
    assert [*seen(of("s", "add"), of("s", "Add"), of("t", "ADD"))] == ["add", "Add", "ADD"]


def test_a_name_does_not_depend_on_what_else_is_offered_unless_it_is_the_same() -> None:
    names = ["stock", "größe", "a/b", "x" * 200, "天気"]
    alone = [*seen(*(of("depot", name) for name in names))]
    others = [of("other", f"other_{n}") for n in range(2000)]
    assert [*seen(*others[:1000], *(of("depot", name) for name in names), *others[1000:])][1000:1005] == alone
    assert all(LEGAL.fullmatch(name) for name in alone)


def test_the_requests_own_functions_keep_their_names_whatever_they_are() -> None:
    assert "a.b" in seen(function("a.b"), of("files", "a.b"))


words = st.sampled_from(["a", "b", "a__b", "s", "s__a", "a.b", "x" * 40])
definitions = st.one_of(
    st.builds(custom, st.sampled_from(["a", "c", "s__a"])),
    st.builds(within, words, words, st.sampled_from([ToolKind.FUNCTION, ToolKind.CUSTOM])),
    st.builds(function, st.sampled_from(["a", "b", "s__a", "s__a_2"])),
    st.builds(of, st.sampled_from(["s", "t", "lang/é"]), st.text(alphabet="ab_.é/", min_size=1, max_size=70)),
    st.builds(of, st.sampled_from(["s", "t"]), st.sampled_from(["a", "b", "s__a", "a_2"])),
)


def _identity(tool: ToolDefinition) -> tuple[object, ...]:
    """A function and a free-form tool of one name are the same to a request; it cannot have both."""
    is_own = tool.kind in (ToolKind.FUNCTION, ToolKind.CUSTOM)
    return (is_own, tool.namespace, tool.server_label, tool.own_name)


@given(st.lists(definitions, max_size=12))
def test_no_tool_is_lost_and_every_name_is_legal_whatever_is_offered(found: list[ToolDefinition]) -> None:
    named = named_apart(found)
    kept = {_identity(tool) for tool in found}
    assert {_identity(tool) for tool in named.values()} == kept
    assert len(named) == len(kept)
    assert all(name == tool.name and LEGAL.fullmatch(name) for name, tool in named.items())


@given(st.text())
def test_a_legal_name_stays_legal(name: str) -> None:
    assert LEGAL.fullmatch(legal_name(name))
    assert legal_name(legal_name(name)) == legal_name(name)
