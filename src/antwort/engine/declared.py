"""The tools that a request declares itself, as the backend takes them: all of them functions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from antwort.api.declarations import own_tools
from antwort.api.tools import CustomTool, FunctionTool, GrammarInput, NamespaceTool, Tool
from antwort.engine.naming import labelled_name, legal_name
from antwort.engine.servers import Shelf
from antwort.errors import InvalidField
from antwort.patterns import plain_pattern
from antwort.providers.base import Capabilities
from antwort.tools.base import Describing, ToolDefinition, ToolKind
from antwort.tools.routing import find_executor

INPUT = "input"
"""The one parameter that a free-form tool has for the backend."""
_PLAIN = "The whole input of the tool: plain text, not JSON."
_FITTING = "The whole input of the tool: plain text, not JSON, that matches the grammar."
_SYNTAX = {"lark": "Lark grammar", "regex": "regular expression"}
_LONGEST_ABOUT = 300


def definitions(tool: FunctionTool | CustomTool | NamespaceTool, shelf: Shelf) -> tuple[ToolDefinition, ...]:
    match tool:
        case FunctionTool():
            return (_function(tool, shelf),)
        case CustomTool():
            return (_custom(tool, shelf.capabilities),)
        case NamespaceTool():
            return tuple(_within(tool, inner, shelf) for inner in tool.tools)


async def check_grammars(tools: Sequence[Tool]) -> None:
    """Raises `InvalidField` for a grammar that cannot be read."""
    grammars = {
        path: tool.format
        for path, _, tool in own_tools(tools)
        if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput)
    }
    if grammars:
        await asyncio.to_thread(_check_each, grammars)  # the first look at one takes a moment


def _check_each(grammars: Mapping[str, GrammarInput]) -> None:
    from antwort.tools.grammar import check_grammar

    for path, grammar in grammars.items():
        if (problem := check_grammar(grammar)) is not None:
            raise InvalidField(f"{path}.format.definition", problem)


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
    if not isinstance(executor, Describing) or (own := executor.describe(declared)) is None:
        return declared  # under the name by which somebody here runs it
    return replace(
        declared,
        description=own.description if tool.description is None else tool.description,
        parameters=own.parameters if tool.parameters is None else tool.parameters,
    )


def _as_declared(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.FUNCTION,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )


def _renamed(tool: ToolDefinition, name: str) -> ToolDefinition:
    return tool if name == tool.name else replace(tool, name=name, server_tool=tool.own_name)


# ---- free-form tools ----


def _custom(tool: CustomTool, capabilities: Capabilities) -> ToolDefinition:
    """A function of one string. Its grammar is a pattern of that string, or told in words."""
    grammar = tool.format if isinstance(tool.format, GrammarInput) else None
    pattern = None if grammar is None else _pattern(grammar, capabilities)
    is_told = grammar is not None and pattern is None
    told = _in_words(grammar) if grammar is not None and is_told else None
    definition = ToolDefinition(
        name=tool.name,
        kind=ToolKind.CUSTOM,
        description=_joined(tool.description, told),
        parameters=_parameters(_FITTING if is_told else _PLAIN, pattern),
        grammar=grammar,
    )
    return _renamed(definition, legal_name(tool.name))


def _pattern(grammar: GrammarInput, capabilities: Capabilities) -> str | None:
    """What the backend holds the input to; None where it cannot."""
    if capabilities.grammar == "described":
        return None
    from antwort.tools.grammar import pattern_for

    pattern = pattern_for(grammar)
    if pattern is not None and capabilities.grammar == "plain_pattern":
        return plain_pattern(pattern)
    return pattern


def _in_words(grammar: GrammarInput) -> str:
    syntax = _SYNTAX[grammar.syntax]
    return f"The input must match this {syntax}, from its first character to its last:\n\n{grammar.definition}"


def _parameters(about: str, pattern: str | None) -> dict[str, Any]:
    text = {"type": "string", "description": about} | ({} if pattern is None else {"pattern": pattern})
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


# ---- namespaces ----


def _within(namespace: NamespaceTool, tool: FunctionTool | CustomTool, shelf: Shelf) -> ToolDefinition:
    """A tool in a namespace is the client's, whoever runs functions of its name here."""
    own = _as_declared(tool) if isinstance(tool, FunctionTool) else _custom(tool, shelf.capabilities)
    return replace(
        own,
        name=labelled_name(namespace.name, tool.name),
        server_tool=tool.name,
        namespace=namespace.name,
        description=_joined(_shortened(namespace.description), own.description),
    )


def _shortened(text: str | None) -> str | None:
    """What is said of all tools of a namespace is said with each of them."""
    words = " ".join((text or "").split())
    return words if len(words) <= _LONGEST_ABOUT else f"{words[:_LONGEST_ABOUT].rpartition(' ')[0]}…"


def _joined(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None
