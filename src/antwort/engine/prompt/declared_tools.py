"""The tools that a request declares itself, as the backend takes them: all of them functions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from antwort.api.additional_tools import Declaration
from antwort.api.tool_declarations import own_tools
from antwort.api.tools import CustomTool, FunctionTool, GrammarInput, NamespaceTool, may_be_called
from antwort.engine.prompt.discovery import Shelf
from antwort.engine.prompt.tool_names import labelled_name, legal_name
from antwort.errors import InvalidField
from antwort.providers.base import Capabilities
from antwort.schema.keywords import plain_pattern
from antwort.tools.base import Describing, ToolDefinition, ToolKind
from antwort.tools.limits import offers
from antwort.tools.routing import find_executor

if TYPE_CHECKING:
    from antwort.tools.grammar import Grammar

INPUT = "input"
"""The one parameter that a free-form tool has for the backend."""
_PLAIN = "The whole input of the tool: plain text, not JSON."
_FITTING = "The whole input of the tool: plain text, not JSON, that matches the grammar."
_SYNTAX = {"lark": "Lark grammar", "regex": "regular expression"}
_LONGEST_ABOUT = 300

Grammars: TypeAlias = "Mapping[GrammarInput, Grammar]"


def definitions(
    tool: FunctionTool | CustomTool | NamespaceTool, shelf: Shelf, grammars: Grammars
) -> tuple[ToolDefinition, ...]:
    match tool:
        case FunctionTool() | CustomTool() if not may_be_called(tool):
            return ()
        case FunctionTool():
            return (_function(tool, shelf),)
        case CustomTool():
            return (_custom(tool, shelf.capabilities, grammars),)
        case NamespaceTool():
            return tuple(_within(tool, inner, shelf, grammars) for inner in tool.tools if may_be_called(inner))


async def read_grammars(declared: Sequence[Declaration]) -> Grammars:
    """Those of the request's tools. Raises `InvalidField` for one that cannot be read."""
    sources = {
        path: tool.format
        for each in declared
        for path, _, tool in own_tools(each.tool, each.path)
        if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput)
    }
    return await asyncio.to_thread(_read_each, sources) if sources else {}  # the first look at one takes a moment


def _read_each(sources: Mapping[str, GrammarInput]) -> Grammars:
    from antwort.tools.grammar import read_grammar

    found: dict[GrammarInput, Grammar] = {}
    for path, source in sources.items():
        grammar = found[source] = read_grammar(source)
        if grammar.problem is not None:
            raise InvalidField(f"{path}.format.definition", grammar.problem)
    return found


def is_held(definition: ToolDefinition) -> bool:
    """Whether the backend itself holds the input of a free-form tool to its grammar."""
    parameters = definition.parameters or {}
    return "pattern" in parameters.get("properties", {}).get(INPUT, {})


# ---- functions ----


def _function(tool: FunctionTool, shelf: Shelf) -> ToolDefinition:
    """What the declaration leaves out is what the function that runs here says of itself."""
    declared = _as_declared(tool)
    executor = find_executor(declared, shelf.executors)
    if executor is None:
        return _renamed(declared, legal_name(tool.name))
    if not offers(executor, Describing) or (own := executor.describe(declared)) is None:
        return declared  # under the name by which somebody here runs it
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
    """A function of one string. Its grammar is a pattern of that string, or told in words."""
    grammar = grammars.get(tool.format) if isinstance(tool.format, GrammarInput) else None
    pattern = None if grammar is None else _pattern(grammar, capabilities)
    is_told = grammar is not None and pattern is None
    told = None if grammar is None or not is_told or _tells_apart(capabilities) else _in_words("The input", grammar)
    definition = ToolDefinition(
        name=tool.name,
        kind=ToolKind.CUSTOM,
        description=_joined(tool.description, told),
        parameters=_parameters(_FITTING if is_told else _PLAIN, pattern),
        grammar=grammar,
        is_deferred=tool.defer_loading is True,
    )
    return _renamed(definition, legal_name(tool.name))


def _pattern(grammar: Grammar, capabilities: Capabilities) -> str | None:
    """What the backend holds the input to; None where it cannot."""
    match capabilities.grammar:
        case "described":
            return None
        case "plain_pattern":
            return None if grammar.pattern is None else plain_pattern(grammar.pattern)
        case "pattern":
            return grammar.pattern


def grammars_told(tools: Mapping[str, ToolDefinition], capabilities: Capabilities) -> tuple[str, ...]:
    """The grammars that are part of the instructions."""
    if not _tells_apart(capabilities):
        return ()
    return tuple(
        _in_words(f"The input of the tool {name}", tool.grammar)
        for name, tool in tools.items()
        if tool.grammar is not None and not is_held(tool)
    )


def _tells_apart(capabilities: Capabilities) -> bool:
    """Whether descriptions are written anew for the model: a grammar would not be the same with its lines folded."""
    return capabilities.folds


def _in_words(what: str, grammar: Grammar) -> str:
    syntax, definition = _SYNTAX[grammar.source.syntax], grammar.source.definition
    return f"{what} must match this {syntax}, from its first character to its last:\n\n{definition}"


def _parameters(about: str, pattern: str | None) -> dict[str, Any]:
    text = {"type": "string", "description": about} | ({} if pattern is None else {"pattern": pattern})
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


# ---- namespaces ----


def _within(
    namespace: NamespaceTool, tool: FunctionTool | CustomTool, shelf: Shelf, grammars: Grammars
) -> ToolDefinition:
    """A tool in a namespace is the client's, whoever runs functions of its name here."""
    own = _as_declared(tool) if isinstance(tool, FunctionTool) else _custom(tool, shelf.capabilities, grammars)
    return replace(
        own,
        name=labelled_name(namespace.name, tool.name),
        server_tool=tool.name,
        namespace=namespace.name,
        description=_joined(_shortened(namespace.description), own.description),
        is_deferred=own.is_deferred or namespace.defer_loading is True,
    )


def _shortened(text: str | None) -> str | None:
    """What is said of all tools of a namespace is said with each of them."""
    words = " ".join((text or "").split())
    return words if len(words) <= _LONGEST_ABOUT else f"{words[:_LONGEST_ABOUT].rpartition(' ')[0]}…"


def _joined(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None
