"""The plan: the request with every question answered before the first inference."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputItem,
    InputVideo,
    McpCall,
    McpListTools,
    McpToolInfo,
    Message,
)
from antwort.api.requests import CreateRequest, TextOptions
from antwort.api.responses import ReasoningEcho, Response
from antwort.api.tools import (
    ForcedFunction,
    ForcedServer,
    FunctionTool,
    McpTool,
    NamedTool,
    OpaqueTool,
    Tool,
    echo_choice,
    echo_tool,
)
from antwort.api.wire import UNSET, Plain
from antwort.engine.settings import EngineSettings
from antwort.engine.turn import Shown
from antwort.errors import InvalidField, UnsupportedFeature
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.providers.base import Capabilities
from antwort.tools.base import ToolDefinition, ToolExecutor, ToolKind, ToolServer
from antwort.tools.routing import Route, Toolbox, is_registered, route

_log = logging.getLogger("antwort.engine")

HOUSE_LABEL = "antwort"
"""The server label of calls for which no server is meant: refused ones, and names nobody offered."""


class OpenCall(msgspec.Struct, frozen=True):
    """A call without a result. `name` is what the model called; `at` is its place in the output, None in history."""

    call_id: str
    name: str
    arguments: str
    at: int | None
    item: FunctionCall | McpCall


class Leftover(msgspec.Struct, frozen=True):
    """A server's call that an earlier response left open, and the tools it was made under."""

    call: OpenCall
    toolbox: Toolbox


class History(msgspec.Struct, frozen=True):
    """All that was said before. A stretch is what stands together: an input, or the items of one turn."""

    stretches: tuple[tuple[InputItem, ...], ...] = ()
    leftovers: tuple[Leftover, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    request: CreateRequest
    identity: Identity
    settings: EngineSettings
    response: Response
    """The response as it starts: `in_progress`, every setting echoed as in force."""
    toolbox: Toolbox
    capabilities: Capabilities = Capabilities()
    history: History = History()
    listings: tuple[McpListTools, ...] = ()
    """What the servers that the request names offer, to be shown first."""

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        return self.history.leftovers

    @property
    def reasoning_style(self) -> Literal["text", "standard", "summary"]:
        options = self.request.reasoning
        if options is not None and (options.summary or options.generate_summary):
            return "summary"
        return "standard" if self.settings.strict else "text"

    def shown(self, name: str) -> Shown:
        """How a call to `name` shows: never as a function call when the client must not run it."""
        place = route(name, self.toolbox)
        definition = self.toolbox.tools.get(name)
        if definition is not None and definition.kind is not ToolKind.FUNCTION:
            return Shown(definition.server_tool or name, definition.server_label or HOUSE_LABEL)
        if place in (Route.REJECTED, Route.UNKNOWN) and self.settings.refused_calls == "mcp_call":
            return Shown(name, HOUSE_LABEL)
        return Shown(name)


# ---- tools ----


def model_name(toolbox: Toolbox, label: str, name: str) -> str:
    """What the model calls the tool that its server calls `name`."""
    for definition in toolbox.tools.values():
        if definition.server_label == label and (definition.server_tool or definition.name) == name:
            return definition.name
    return name


async def build_toolbox(
    request: CreateRequest, executors: Sequence[ToolExecutor], identity: Identity, settings: EngineSettings
) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    """What the request offers the model, and the lists of the servers it names."""
    tools: dict[str, ToolDefinition] = {}
    declared = {tool.name for tool in request.tools if isinstance(tool, FunctionTool)}
    listings: list[McpListTools] = []
    for i, tool in enumerate(request.tools):
        match tool:
            case FunctionTool():
                tools[tool.name] = _function(tool)
            case McpTool():
                found = await _discover(tool, executors, identity, f"tools[{i}]")
                for definition in found:
                    if definition.name not in declared:  # the request's own function goes before a server's tool
                        tools.setdefault(definition.name, definition)
                listings.append(_listing(tool, found))
            case OpaqueTool():
                _refuse_or_drop(tool, i, settings)
    _check_choice(request, tools)
    toolbox = Toolbox(
        tools=tools,
        executors=tuple(executors),
        allowed=_allowed(request.allowed_tools, tools),
        may_run=request.choice_mode != "none" and is_registered(executors, tools),
    )
    return toolbox, tuple(listings)


def _function(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.FUNCTION,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )


async def _discover(
    tool: McpTool, executors: Sequence[ToolExecutor], identity: Identity, path: str
) -> Sequence[ToolDefinition]:
    if tool.server_label == HOUSE_LABEL:  # a refused call would be taken for one of this server's
        raise InvalidField(f"{path}.server_label", f"{HOUSE_LABEL!r} is a label of our own.", code="reserved_label")
    for executor in executors:
        if isinstance(executor, ToolServer):
            found = await executor.discover(tool, identity)
            if found is not None:
                return _chosen(tool, found)
    problem = f"no tool server is offered here under the label {tool.server_label!r}."
    raise InvalidField(f"{path}.server_label", problem, code="unknown_tool_server")


def _chosen(tool: McpTool, found: Sequence[ToolDefinition]) -> Sequence[ToolDefinition]:
    """The server's tools, less those that the declaration leaves out."""
    names = tool.allowed_tools
    if isinstance(names, dict):
        names = tuple(names.get("tool_names", ()))
    if names is UNSET or names is None:
        return found
    return [definition for definition in found if (definition.server_tool or definition.name) in names]


def _listing(tool: McpTool, found: Sequence[ToolDefinition]) -> McpListTools:
    infos = tuple(
        McpToolInfo(
            name=definition.server_tool or definition.name,
            input_schema=definition.parameters or {"type": "object", "properties": {}},
            description=UNSET if definition.description is None else definition.description,
        )
        for definition in found
    )
    return McpListTools(id=new_id("mcpl"), server_label=tool.server_label, tools=infos)


def _refuse_or_drop(tool: OpaqueTool, at: int, settings: EngineSettings) -> None:
    if settings.unknown_tools == "refuse":
        problem = f"tools of type {tool.type!r} are not offered here."
        raise InvalidField(f"tools[{at}].type", problem, code="unsupported_tool")
    _log.info("dropped tools[%d]: nobody here runs tools of its type", at)


def _allowed(named: tuple[NamedTool, ...] | None, tools: Mapping[str, ToolDefinition]) -> frozenset[str] | None:
    if named is None:
        return None
    return frozenset(
        definition.name for definition in tools.values() if any(_names(entry, definition) for entry in named)
    ) or frozenset({""})  # a list that names none of the tools allows none


def _names(entry: NamedTool, definition: ToolDefinition) -> bool:
    if entry.server_label is not UNSET:
        own = definition.server_tool or definition.name
        return entry.server_label == definition.server_label and entry.name in (UNSET, own)
    return entry.name == definition.name


def _check_choice(request: CreateRequest, tools: Mapping[str, ToolDefinition]) -> None:
    choice = request.choice_mode
    if isinstance(choice, ForcedFunction) and choice.name not in tools:
        raise _not_a_tool("name", f"{choice.name!r} is not one of the tools.")
    if isinstance(choice, ForcedServer):
        names = [
            definition.server_tool or definition.name
            for definition in tools.values()
            if definition.server_label == choice.server_label
        ]
        if not names:
            raise _not_a_tool("server_label", f"{choice.server_label!r} is not the label of one of the tools.")
        if isinstance(choice.name, str) and choice.name not in names:
            raise _not_a_tool("name", f"{choice.name!r} is not one of the server's tools.")


def _not_a_tool(field: str, problem: str) -> InvalidField:
    return InvalidField(f"tool_choice.{field}", problem, code="unknown_tool")


# ---- what the backend can take ----


def check_capabilities(stretches: Sequence[Sequence[InputItem]], capabilities: Capabilities) -> None:
    """Refuse what the backend cannot read, before it is asked. The new input is the last stretch.

    Results of earlier calls are let through: a tool's picture must not bar the way for good, and is named instead.
    """
    *earlier, new = stretches
    for said in (item for stretch in earlier for item in stretch if isinstance(item, Message)):
        for content in said.content:
            _check_part(content, "previous_response_id", capabilities)
    for i, item in enumerate(new):
        field, parts = _parts(item)
        for j, part in enumerate(parts):
            _check_part(part, f"input[{i}].{field}[{j}]", capabilities)


def _parts(item: InputItem) -> tuple[str, Sequence[object]]:
    """The parts of an item, and the field they stand in."""
    if isinstance(item, Message):
        return "content", item.content
    if isinstance(item, FunctionCallOutput | CustomToolCallOutput) and not isinstance(item.output, str):
        return "output", item.output
    return "", ()


def _check_part(part: object, path: str, capabilities: Capabilities) -> None:
    if isinstance(part, InputImage):
        if not capabilities.vision:
            raise UnsupportedFeature("The model does not take images.", param=path)
        if part.image_url is None:
            raise UnsupportedFeature("Images are taken by 'image_url' only.", param=path)
    elif isinstance(part, InputVideo) and not capabilities.vision:
        raise UnsupportedFeature("The model does not take videos.", param=path)
    elif isinstance(part, InputFile) and not (capabilities.files and isinstance(part.file_data, str)):
        raise UnsupportedFeature("The model does not take files.", param=path)


# ---- the response as it starts ----


def draft_response(request: CreateRequest, model: str, settings: EngineSettings) -> Response:
    """Every setting echoed as in force; what was left open has the standard's default."""
    given = {name: value for name in _ECHOED if (value := getattr(request, name)) is not None}
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        status="in_progress",
        model=model,
        tools=tuple(echo_tool(tool) for tool in _kept(request.tools)),
        tool_choice=echo_choice(request.tool_choice),
        text=_echo_text(request.text, strict=settings.strict),
        reasoning=_echo_reasoning(request),
        store=request.is_stored,
        service_tier=request.service_tier if request.service_tier not in (None, "auto") else "default",
        **given,
    )


_ECHOED = (
    "previous_response_id",
    "instructions",
    "truncation",
    "parallel_tool_calls",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
)


def _kept(tools: Sequence[Tool]) -> list[Tool]:
    return [tool for tool in tools if not isinstance(tool, OpaqueTool)]


def _echo_text(text: TextOptions | None, *, strict: bool) -> Plain:
    if text is None:
        return {"format": {"type": "text"}}
    form: dict[str, Any] = {"type": text.format.type}
    if text.format.type == "json_schema":
        form |= {
            "name": text.format.name,
            "description": text.format.description,
            "schema": None if strict else text.format.schema,
            "strict": bool(text.format.strict),
        }
    return {"format": form} if text.verbosity is None else {"format": form, "verbosity": text.verbosity}


def _echo_reasoning(request: CreateRequest) -> ReasoningEcho | None:
    options = request.reasoning
    if options is None:
        return None
    return ReasoningEcho(effort=options.effort, summary=options.summary or options.generate_summary)
