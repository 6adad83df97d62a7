"""Tools that a request declares, in `tools` or in `additional_tools` items: its own as functions for the backend, and
those that only OpenAI runs as the toolsets that the operator has put in their place.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from antwort.api.items import ADDITIONAL, Compaction, InputItem, OpaqueItem, is_additional, new_item_id
from antwort.api.tool_parsing import Declaration, Declared, bared, checked_item, declared_steps, own_tools
from antwort.api.tools import (
    CustomTool,
    FunctionTool,
    GrammarInput,
    McpTool,
    NamespaceTool,
    OpaqueTool,
    Tool,
    may_be_called,
)
from antwort.api.wire import UNSET, encode, to_plain
from antwort.crypto import CannotOpen
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.prompt.discovery import Discovery
from antwort.engine.prompt.tool_names import labelled_name, legal_name
from antwort.engine.settings import EngineSettings, HostedPolicy
from antwort.errors import InvalidField, shown
from antwort.event_loop import in_turns
from antwort.notes import note
from antwort.providers.base import Capabilities
from antwort.tools.base import ToolDefinition, ToolKind
from antwort.tools.routing import find_executor
from antwort.tools.search import SEARCH

if TYPE_CHECKING:
    from antwort.tools.grammar import Grammar

_log = logging.getLogger("antwort.engine")

_ODD = re.compile(r"[^A-Za-z0-9_.:-]")
_LONGEST_TYPE, _MOST_TYPES = 64, 8
"""How much of the client's words a line of the log takes."""
INPUT = "input"
"""The one parameter that a free-form tool has for the backend."""
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


async def read_grammars(declared: Declaration) -> Grammars:
    """Parse the grammars of a declaration. Raises `InvalidField` for an invalid one."""
    sources = {
        path: tool.format
        for path, _, tool in own_tools(declared.tool, declared.path)
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
    pattern = None if grammar is None or capabilities.grammar == "described" else grammar.pattern
    text, words = {"type": "string", "description": _PLAIN}, None
    if pattern is not None:
        text["pattern"] = pattern
    elif grammar is not None:
        text["description"] = _FITTING
        words = None if capabilities.folds else _described("The input", grammar)
    definition = ToolDefinition(
        name=tool.name,
        kind=ToolKind.CUSTOM,
        description=_joined(tool.description, words),
        parameters={
            "type": "object",
            "properties": {INPUT: text},
            "required": [INPUT],
            "additionalProperties": False,
        },
        grammar=grammar,
        is_deferred=tool.defer_loading is True,
    )
    return _renamed(definition, legal_name(tool.name))


def grammar_instructions(tools: Mapping[str, ToolDefinition], capabilities: Capabilities) -> tuple[str, ...]:
    """Return the grammars that are part of the instructions: where descriptions are rewritten for the model, a grammar
    would change with its lines folded.
    """
    if not capabilities.folds:
        return ()
    return tuple(
        _described(f"The input of the tool {name}", tool.grammar)
        for name, tool in tools.items()
        if tool.grammar is not None and not is_enforced(tool)
    )


def _described(subject: str, grammar: Grammar) -> str:
    syntax, definition = _SYNTAX[grammar.source.syntax], grammar.source.definition
    return f"{subject} must match this {syntax}, from its first character to its last:\n\n{definition}"


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
        description=_joined(shortened_text(namespace.description or "", _LONGEST_DESCRIPTION), own.description),
        is_deferred=own.is_deferred or namespace.defer_loading is True,
    )


def shortened_text(text: str, most: int) -> str:
    """Return the words of a description, at most so many characters: it stands with each of the tools it is for."""
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else f"{words[:most].rpartition(' ')[0]}…"


def _joined(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None


# ---- tools in `additional_tools` items ----

_DECLARING = frozenset({OpaqueItem, Compaction})
"""Items that may declare tools. A compaction holds those declared before it, where a client leaves them away."""


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
    declared = [*declared_in(earlier, sealed, path), *declared_in(new, sealed, "input", is_new=True)]
    return await in_turns(declared_steps(declared, most))


def declared_in(
    items: Sequence[InputItem], sealed: SealedItems, path: str, *, is_new: bool = False
) -> Iterator[Declared]:
    """Yield what items declare, oldest first; `path` is the field of the request that names those of before it."""
    last = next((item for item in reversed(items) if isinstance(item, Compaction)), None)
    for at, item in enumerate(items):
        if is_additional(item):
            yield sealed.declared_in(item, f"input[{at}].tools" if is_new else path, is_inherited=not is_new)
        elif last is not None and item is last:
            try:
                tools = sealed.memories.opened(last).tools
            except CannotOpen:  # others decide whether that matters
                continue
            yield from (sealed.declared_in(each, path, is_inherited=True) for each in tools if is_additional(each))


def as_item(additional: Sequence[Declaration], sealed: SealedItems) -> tuple[InputItem, ...]:
    """Return one item that declares the same tools, in its stored form; nothing for none."""
    if not additional:
        return ()
    given = {"type": ADDITIONAL, "role": "developer", "tools": [to_plain(each.tool) for each in additional]}
    item = checked_item(OpaqueItem(ADDITIONAL, new_item_id(ADDITIONAL), bared(given, encode(given))), given, "")
    return (sealed.sealed_item(item),)


# ---- hosted tools, which only OpenAI runs ----


def policy_for(kind: str, settings: EngineSettings) -> HostedPolicy:
    """Return the policy of the type, or of the longest prefix that ends in `*`; else that of `unknown_tools`."""
    if (exact := settings.hosted.get(kind)) is not None:
        return exact
    prefixes = [word for word in settings.hosted if word.endswith("*") and kind.startswith(word[:-1])]
    return settings.hosted[max(prefixes, key=len)] if prefixes else HostedPolicy(do=settings.unknown_tools)


def asks_to_search(tool: Tool, settings: EngineSettings) -> bool:
    """Return whether the tool only allows the model to search for tools, which it may do in any case. Not where the
    client searches, nor where the operator has a policy for it.
    """
    if not isinstance(tool, OpaqueTool) or tool.type != SEARCH or tool.fields.get("execution") == "client":
        return False
    return tool.type not in settings.hosted


def stand_in(tool: OpaqueTool, settings: EngineSettings, *, is_earlier: bool = False) -> McpTool | None:
    """Return the toolset that the operator has put in place of the tool; None: it is dropped. Raises `InvalidField`
    where it is refused, unless it was declared earlier.
    """
    policy = policy_for(tool.type, settings)
    if policy.do == "refuse" and not is_earlier:
        problem = f"tools of type {shown(tool.type)} are not offered here."
        raise InvalidField(f"{tool.path}.type", problem, code="unsupported_tool")
    if policy.do != "run" or policy.toolset is None:
        return None
    return McpTool(server_label=policy.toolset, allowed_tools=UNSET if policy.tools is None else policy.tools)


def stands_in(definition: ToolDefinition, kind: str, settings: EngineSettings) -> bool:
    """Return whether the tool stands in for hosted tools of that type."""
    policy = policy_for(kind, settings)
    if policy.do != "run" or policy.toolset is None or definition.server_label != policy.toolset:
        return False
    return policy.tools is None or definition.own_name in policy.tools


def in_force(tools: Sequence[Tool], settings: EngineSettings) -> list[Tool]:
    """Return the tools without those that are dropped; one that a toolset stands in for stays as it was declared."""
    return [
        tool
        for tool in tools
        if not isinstance(tool, OpaqueTool)
        or asks_to_search(tool, settings)
        or policy_for(tool.type, settings).do == "run"
    ]


def note_dropped(kinds: Iterable[str]) -> None:
    """Log one line for a request, whatever it declares."""
    cleaned = list(dict.fromkeys(_ODD.sub("?", kind[:_LONGEST_TYPE]) for kind in kinds))
    if not cleaned:
        return
    more = len(cleaned) - _MOST_TYPES
    types = ", ".join(cleaned[:_MOST_TYPES]) + (f" and {more} more" if more > 0 else "")
    note(_log, logging.INFO, f"dropped tools of types that nobody here runs: {types}", said={"types": types})


def check_hosted(hosted: Mapping[str, HostedPolicy], labels: Collection[str]) -> None:
    """Raise `ValueError` for a policy that names no toolset, or one that is not there."""
    for kind, policy in hosted.items():
        if policy.do == "run" and policy.toolset not in labels:
            there = f"known are {', '.join(sorted(labels))}" if labels else "there is none"
            named = "names no toolset" if policy.toolset is None else f"names the toolset {policy.toolset!r}"
            raise ValueError(f"The policy for tools of type {kind!r} {named}; {there}.")
