"""Tools that a request declares itself, in `tools` or in `additional_tools` items, as functions for the backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from antwort.api.additional_tools import ADDITIONAL, Declaration, Declared, checked_item, declared_steps, is_additional
from antwort.api.credentials import bared
from antwort.api.input_items import new_item_id
from antwort.api.items import Compaction, InputItem, OpaqueItem
from antwort.api.tool_declarations import own_tools
from antwort.api.tools import CustomTool, FunctionTool, GrammarInput, NamespaceTool, may_be_called
from antwort.api.wire import encode, to_plain
from antwort.engine.history.credentials import Credentials
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.prompt.discovery import Discovery
from antwort.engine.prompt.tool_names import labelled_name, legal_name
from antwort.errors import InvalidField
from antwort.event_loop import in_turns
from antwort.providers.base import Capabilities
from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.routing import find_executor
from antwort.vault import CannotOpen

if TYPE_CHECKING:
    from antwort.tools.grammar import Grammar

INPUT = "input"
"""The one parameter that a free-form tool has for the backend."""
UNBOUNDED = 2**31
"""The number of tools that earlier items may declare: they were accepted under other limits."""
_PLAIN = "The whole input of the tool: plain text, not JSON."
_FITTING = "The whole input of the tool: plain text, not JSON, that matches the grammar."
_SYNTAX = {"lark": "Lark grammar", "regex": "regular expression"}
_LONGEST_DESCRIPTION = 300

Grammars: TypeAlias = "Mapping[GrammarInput, Grammar]"


def definitions(
    tool: FunctionTool | CustomTool | NamespaceTool, discovery: Discovery, grammars: Grammars
) -> tuple[ToolDefinition, ...]:
    match tool:
        case FunctionTool() | CustomTool() if not may_be_called(tool):
            return ()
        case FunctionTool():
            return (_function(tool, discovery),)
        case CustomTool():
            return (_custom(tool, discovery.capabilities, grammars),)
        case NamespaceTool():
            return tuple(
                _in_namespace(tool, inner, discovery, grammars) for inner in tool.tools if may_be_called(inner)
            )


async def read_grammars(declared: Sequence[Declaration]) -> Grammars:
    """Parse the grammars of the request's tools. Raises `InvalidField` for an invalid one."""
    sources = {
        path: tool.format
        for each in declared
        for path, _, tool in own_tools(each.tool, each.path)
        if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput)
    }
    return await asyncio.to_thread(_read_each, sources) if sources else {}  # to parse a new one takes a while


def _read_each(sources: Mapping[str, GrammarInput]) -> Grammars:
    from antwort.tools.grammar import read_grammar

    found: dict[GrammarInput, Grammar] = {}
    for path, source in sources.items():
        grammar = found[source] = read_grammar(source)
        if grammar.problem is not None:
            raise InvalidField(f"{path}.format.definition", grammar.problem)
    return found


def is_enforced(definition: ToolDefinition) -> bool:
    """Return whether the backend itself enforces the grammar of a free-form tool."""
    parameters = definition.parameters or {}
    return "pattern" in parameters.get("properties", {}).get(INPUT, {})


# ---- functions ----


def _function(tool: FunctionTool, discovery: Discovery) -> ToolDefinition:
    """Complete the declaration by what the function that runs here says about itself."""
    declared = _as_declared(tool)
    executor = find_executor(declared, discovery.executors)
    if executor is None:
        return _renamed(declared, legal_name(tool.name))
    if (own := executor.describe(declared)) is None:
        return declared  # under the name that an executor here runs
    return replace(
        declared,
        description=own.description if tool.description is None else tool.description,
        parameters=own.parameters if tool.parameters is None else tool.parameters,
        read_only=own.read_only,
        idempotent=own.idempotent,
        needs_approval=own.needs_approval is True,
    )


def _as_declared(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.FUNCTION,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
        is_deferred=tool.defer_loading is True,
    )


def _renamed(tool: ToolDefinition, name: str) -> ToolDefinition:
    return tool if name == tool.name else replace(tool, name=name, server_tool=tool.own_name)


# ---- free-form tools ----


def _custom(tool: CustomTool, capabilities: Capabilities, grammars: Grammars) -> ToolDefinition:
    """Return a function of one string. Its grammar is a pattern of that string, or described in words."""
    grammar = grammars.get(tool.format) if isinstance(tool.format, GrammarInput) else None
    pattern = None if grammar is None else _pattern(grammar, capabilities)
    is_described = grammar is not None and pattern is None
    description = (
        None
        if grammar is None or not is_described or _needs_instructions(capabilities)
        else _described("The input", grammar)
    )
    definition = ToolDefinition(
        name=tool.name,
        kind=ToolKind.CUSTOM,
        description=_joined(tool.description, description),
        parameters=_parameters(_FITTING if is_described else _PLAIN, pattern),
        grammar=grammar,
        is_deferred=tool.defer_loading is True,
    )
    return _renamed(definition, legal_name(tool.name))


def _pattern(grammar: Grammar, capabilities: Capabilities) -> str | None:
    """Return the pattern that the backend enforces; None if it cannot."""
    return None if capabilities.grammar == "described" else grammar.pattern


def grammar_instructions(tools: Mapping[str, ToolDefinition], capabilities: Capabilities) -> tuple[str, ...]:
    """Return the grammars that are part of the instructions."""
    if not _needs_instructions(capabilities):
        return ()
    return tuple(
        _described(f"The input of the tool {name}", tool.grammar)
        for name, tool in tools.items()
        if tool.grammar is not None and not is_enforced(tool)
    )


def _needs_instructions(capabilities: Capabilities) -> bool:
    """Whether descriptions are rewritten for the model: a grammar would change with its lines folded."""
    return capabilities.folds


def _described(subject: str, grammar: Grammar) -> str:
    syntax, definition = _SYNTAX[grammar.source.syntax], grammar.source.definition
    return f"{subject} must match this {syntax}, from its first character to its last:\n\n{definition}"


def _parameters(description: str, pattern: str | None) -> dict[str, Any]:
    text = {"type": "string", "description": description} | ({} if pattern is None else {"pattern": pattern})
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


# ---- namespaces ----


def _in_namespace(
    namespace: NamespaceTool, tool: FunctionTool | CustomTool, discovery: Discovery, grammars: Grammars
) -> ToolDefinition:
    """A tool in a namespace is the client's, even if an executor here runs functions of its name."""
    own = _as_declared(tool) if isinstance(tool, FunctionTool) else _custom(tool, discovery.capabilities, grammars)
    return replace(
        own,
        name=labelled_name(namespace.name, tool.name),
        server_tool=tool.name,
        namespace=namespace.name,
        description=_joined(_shortened(namespace.description), own.description),
        is_deferred=own.is_deferred or namespace.defer_loading is True,
    )


def _shortened(text: str | None) -> str | None:
    """Shorten the description of a namespace, which stands with each of its tools."""
    words = " ".join((text or "").split())
    return words if len(words) <= _LONGEST_DESCRIPTION else f"{words[:_LONGEST_DESCRIPTION].rpartition(' ')[0]}…"


def _joined(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None


# ---- tools in `additional_tools` items ----

_DECLARING = frozenset({OpaqueItem, Compaction})
"""Items that may declare tools. A compaction holds those declared before it, where a client leaves them away."""


def declared_before(items: Sequence[InputItem], sealed: SealedItems, path: str) -> list[Declared]:
    """Return what the items of earlier responses or of a conversation declare, oldest first; `path` is the field of the
    request that names those.
    """
    return [*_declared(items, sealed, path, is_new=False)]


async def additional_tools(
    earlier: Sequence[InputItem],
    new: Sequence[InputItem],
    sealed: SealedItems,
    *,
    path: str,
    most: int,
) -> tuple[Declaration, ...]:
    """Return the tools that items declare for a request with this `new` input."""
    if _DECLARING.isdisjoint(map(type, earlier)) and _DECLARING.isdisjoint(map(type, new)):
        return ()
    before = declared_before(earlier, sealed, path)
    declared = _declared(new, sealed, "input", is_new=True)
    return await in_turns(declared_steps([*before, *declared], most))


def _declared(items: Sequence[InputItem], sealed: SealedItems, path: str, *, is_new: bool) -> Iterator[Declared]:
    credentials = sealed.credentials
    last = next((item for item in reversed(items) if isinstance(item, Compaction)), None)
    for at, item in enumerate(items):
        if is_additional(item):
            yield credentials.declared_in(item, f"input[{at}].tools" if is_new else path, is_inherited=not is_new)
        elif last is not None and item is last:
            try:
                tools = sealed.memories.opened(last).tools
            except CannotOpen:  # others decide whether that matters
                continue
            yield from (credentials.declared_in(each, path, is_inherited=True) for each in tools if is_additional(each))


def as_item(additional: Sequence[Declaration], credentials: Credentials | None) -> tuple[InputItem, ...]:
    """Return one item that declares the same tools, in its stored form; nothing for none."""
    if not additional:
        return ()
    given = {"type": ADDITIONAL, "role": "developer", "tools": [to_plain(each.tool) for each in additional]}
    item = checked_item(OpaqueItem(ADDITIONAL, new_item_id(ADDITIONAL), bared(given, encode(given))), given, "")
    return (item if credentials is None else credentials.sealed_item(item),)
