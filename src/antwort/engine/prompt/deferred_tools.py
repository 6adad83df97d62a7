"""Tools that the model must look for before it sees them: which these are, and which of them it has found. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from antwort.api.items import CustomToolCall, FunctionCall, InputItem, McpApprovalRequest, McpCall
from antwort.api.requests import CreateRequest
from antwort.api.tools import McpTool, NamespaceTool
from antwort.engine.prompt.tool_choice import Tools, allowed_names, called_name, forced_names, model_name
from antwort.engine.prompt.tool_names import OWN, free_name
from antwort.engine.settings import EngineSettings
from antwort.tools.base import HOUSE_LABEL, ToolDefinition
from antwort.tools.routing import Toolbox
from antwort.tools.search import MOST_FOUND, SEARCH, ToolSearch, found_in

_LONGEST_ABOUT, _MOST_HINTS = 160, 64


def hidden_names(request: CreateRequest, tools: Tools, settings: EngineSettings) -> frozenset[str]:
    """The tools that stay out of the prompt until they are found: those that are declared so, and all of servers where
    the others are too many. The request's own, however many, are there unless it says otherwise. What the choice or the
    allowed list names is there, too.
    """
    declared = [each.tool for each in request.declarations]
    labels = {tool.server_label for tool in declared if isinstance(tool, McpTool) and tool.defer_loading is True}
    hidden = {name for name, tool in tools.items() if tool.is_deferred or tool.server_label in labels}
    if len(tools) - len(hidden) > settings.max_in_prompt:
        hidden |= {name for name, tool in tools.items() if tool.kind not in OWN}
    return frozenset(hidden - _named(request, tools, settings)) if hidden else frozenset()


def _named(request: CreateRequest, tools: Tools, settings: EngineSettings) -> frozenset[str]:
    """The tools that are meant one by one. A server with more tools than the model is told of at once is searched."""
    entries = tuple(entry for entry in request.allowed_tools or () if isinstance(entry.name, str))
    named = allowed_names(entries, tools, settings) or frozenset()
    choice = request.choice_mode
    forced = [] if isinstance(choice, str) else forced_names(choice, tools, settings)
    return named | frozenset(forced) if len(forced) <= settings.max_in_prompt else named


def with_search(toolbox: Toolbox, hidden: frozenset[str], abouts: Mapping[str, str]) -> Toolbox:
    """The toolbox with a function to look for what is hidden. It finds what is allowed, and is allowed where that is
    anything at all.
    """
    found = [toolbox.tools[name] for name in toolbox.tools if name in hidden]
    allowed = toolbox.allowed
    catalogue = found if allowed is None else [tool for tool in found if tool.name in allowed]
    search = ToolSearch(free_name(SEARCH, toolbox.tools), catalogue, [*_hints(found, abouts)])
    name = search.definition.name
    return replace(
        toolbox,
        tools={**toolbox.tools, name: search.definition},
        executors=(*toolbox.executors, search),
        allowed=allowed | {name} if allowed is not None and catalogue else allowed,
        deferred=hidden,
    )


# ---- what the model is told of what it cannot see ----


def abouts_of(request: CreateRequest, instructions: Mapping[str, str]) -> dict[str, str]:
    """What servers and namespaces are for: by the declaration, else by what servers say themselves."""
    told = dict(instructions)
    for tool in (each.tool for each in request.declarations):
        if isinstance(tool, McpTool) and isinstance(tool.server_description, str):
            told[tool.server_label] = tool.server_description
        elif isinstance(tool, NamespaceTool) and tool.description:
            told[tool.name] = tool.description
    return told


def _hints(hidden: Sequence[ToolDefinition], abouts: Mapping[str, str]) -> Iterator[str]:
    """A line for each server or namespace: what it is called, what it is for, and how many tools it has."""
    numbers = Counter(tool.server_label or tool.namespace for tool in hidden)
    told = {**abouts, **_described(hidden)}
    for label, number in [*numbers.items()][:_MOST_HINTS]:
        about = _shortened(told.get(label, "")) if label else "functions of this conversation"
        yield f"- {label or 'others'}{': ' if about else ''}{about} ({number} {'tool' if number == 1 else 'tools'})"
    if len(numbers) > _MOST_HINTS:
        yield f"- and {len(numbers) - _MOST_HINTS} more servers"


def _described(hidden: Sequence[ToolDefinition]) -> dict[str, str]:
    """Of servers that the request does not describe itself."""
    return {
        tool.server_label: tool.declared.server_description
        for tool in hidden
        if tool.server_label and tool.declared is not None and isinstance(tool.declared.server_description, str)
    }


def _shortened(text: str) -> str:
    words = " ".join(text[: 4 * _LONGEST_ABOUT].split())
    return words if len(words) <= _LONGEST_ABOUT else f"{words[:_LONGEST_ABOUT].rpartition(' ')[0]}…"


# ---- what the model has found ----


def in_prompt(toolbox: Toolbox, stretches: Iterable[Sequence[InputItem]], most: int) -> list[ToolDefinition]:
    """The tools that the next inference is told of. Those that were found stand behind the others, in the order they
    were found in; where they are too many, the latest count.
    """
    tools, hidden = toolbox.tools, toolbox.deferred
    if not hidden:
        return [*tools.values()]
    shown = [tool for name, tool in tools.items() if name not in hidden]
    found = _found(toolbox, stretches)
    room = max(most - len(shown), MOST_FOUND)  # one search must be able to show all that it finds
    latest = set([*found][-room:])
    return shown + [tools[name] for name in sorted(latest, key=found.__getitem__)]


def _found(toolbox: Toolbox, stretches: Iterable[Sequence[InputItem]]) -> dict[str, int]:
    """The hidden tools that were found or called, the latest last, each with its number in the order of first finds."""
    found: dict[str, int] = {}
    for stretch in stretches:
        for item in stretch:
            for name in _names_in(item, toolbox):
                if name in toolbox.deferred and (toolbox.allowed is None or name in toolbox.allowed):
                    found[name] = found.pop(name, len(found))
    return found


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
