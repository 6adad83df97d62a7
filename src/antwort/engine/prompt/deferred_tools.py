"""Deferred tools: hidden from the model until it has found them with the search tool. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from antwort.api.items import CustomToolCall, FunctionCall, InputItem, McpApprovalRequest, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.tools import McpTool, NamespaceTool
from antwort.engine.prompt.declared_tools import shortened_text
from antwort.engine.prompt.tool_choice import allowed_names, forced_names
from antwort.engine.prompt.tool_names import OWN, Tools, called_name, free_name, model_name
from antwort.engine.settings import EngineSettings
from antwort.tools.base import HOUSE_LABEL, ToolDefinition
from antwort.tools.routing import Toolbox
from antwort.tools.search import MOST_FOUND, SEARCH, ToolSearch, found_in

_LONGEST_DESCRIPTION, _MOST_HINTS = 160, 64


def hidden_names(request: CreateRequest, tools: Tools, settings: EngineSettings) -> frozenset[str]:
    """Return the tools that stay out of the prompt until they are found: those that are declared so, and all of
    servers if the others are too many. The request's own tools stay in unless it says otherwise, and so do those that
    the choice or the allowed list names.
    """
    declared = [each.tool for each in request.declarations]
    labels = {tool.server_label for tool in declared if isinstance(tool, McpTool) and tool.defer_loading is True}
    hidden = {name for name, tool in tools.items() if tool.is_deferred or tool.server_label in labels}
    if len(tools) - len(hidden) > settings.max_in_prompt:
        hidden |= {name for name, tool in tools.items() if tool.kind not in OWN}
    return frozenset(hidden - _named(request, tools, settings)) if hidden else frozenset()


def _named(request: CreateRequest, tools: Tools, settings: EngineSettings) -> frozenset[str]:
    """Return the tools that are named one by one. A server with more tools than fit the prompt is searched."""
    entries = tuple(entry for entry in request.allowed_tools or () if isinstance(entry.name, str))
    named = allowed_names(entries, tools, settings) or frozenset()
    choice = request.choice_mode
    forced = [] if isinstance(choice, str) else forced_names(choice, tools, settings)
    return named | frozenset(forced) if len(forced) <= settings.max_in_prompt else named


def with_search(
    toolbox: Toolbox, hidden: frozenset[str], request: CreateRequest, instructions: Mapping[str, str]
) -> Toolbox:
    """Return the toolbox with a search function for the hidden tools. It finds allowed ones, and is allowed if there
    are any. `instructions` are those of the servers, by their labels.
    """
    found = [toolbox.tools[name] for name in toolbox.tools if name in hidden]
    allowed = toolbox.allowed
    catalogue = found if allowed is None else [tool for tool in found if tool.name in allowed]
    search = ToolSearch(free_name(SEARCH, toolbox.tools), catalogue, [*_hints(found, request, instructions)])
    name = search.definition.name
    return replace(
        toolbox,
        tools={**toolbox.tools, name: search.definition},
        executors=(*toolbox.executors, search),
        allowed=allowed | {name} if allowed is not None and catalogue else allowed,
        deferred=hidden,
    )


def _hints(hidden: Sequence[ToolDefinition], request: CreateRequest, instructions: Mapping[str, str]) -> Iterator[str]:
    """Return a line for each server or namespace: its name, what it is for, and how many tools it has.

    What it is for is said by its declaration, else by the server's instructions.
    """
    known = dict(instructions)
    for tool in (*(each.tool for each in request.declarations), *(tool.declared for tool in hidden)):
        if isinstance(tool, McpTool) and isinstance(tool.server_description, str):
            known[tool.server_label] = tool.server_description
        elif isinstance(tool, NamespaceTool) and tool.description:
            known[tool.name] = tool.description
    numbers = Counter(tool.server_label or tool.namespace for tool in hidden)
    for label, number in [*numbers.items()][:_MOST_HINTS]:
        text = shortened_text(known.get(label, ""), _LONGEST_DESCRIPTION) if label else "functions of this conversation"
        yield f"- {label or 'others'}{': ' if text else ''}{text} ({number} {'tool' if number == 1 else 'tools'})"
    if len(numbers) > _MOST_HINTS:
        yield f"- and {len(numbers) - _MOST_HINTS} more servers"


# ---- found tools ----


def in_prompt(toolbox: Toolbox, stretches: Iterable[Sequence[InputItem]], most: int) -> list[ToolDefinition]:
    """Return the tools of the next inference. Found tools stand behind the others, in the order of first finds; if they
    are too many, the latest stay.
    """
    tools, hidden = toolbox.tools, toolbox.deferred
    shown = [tool for name, tool in tools.items() if name not in hidden]
    found: dict[str, int] = {}
    """The hidden tools that were found or called, the latest last, numbered in the order of first finds."""
    for item in chain.from_iterable(stretches):
        for name in _names_in(item, toolbox):
            if name in hidden and (toolbox.allowed is None or name in toolbox.allowed):
                found[name] = found.pop(name, len(found))
    limit = max(most - len(shown), MOST_FOUND)  # one search must be able to show all that it finds
    latest = set([*found][-limit:])
    return shown + [tools[name] for name in sorted(latest, key=found.__getitem__)]


def _names_in(item: InputItem, toolbox: Toolbox) -> Iterable[str]:
    match item:
        case McpCall(server_label=label) if label == HOUSE_LABEL:
            return found_in(item.output) if item.output is not None else ()
        case McpCall() | McpApprovalRequest():
            return (model_name(toolbox, item.server_label, item.name),)
        case FunctionCall() | CustomToolCall():
            return (called_name(toolbox, item),)
        case _:
            return ()
