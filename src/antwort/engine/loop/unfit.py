"""Calls of free-form tools whose input does not fit: how they are known, and what the model is told."""

from __future__ import annotations

from antwort.api.items import InputItem, McpCall
from antwort.engine.loop.custom_input import input_of
from antwort.engine.plan import OpenCall, Plan
from antwort.tools.base import HOUSE_LABEL, ToolKind
from antwort.tools.routing import Route, Toolbox, route


def is_unfit(item: InputItem, toolbox: Toolbox) -> bool:
    """Whether it is a call that the client could run, refused for its input alone. It shows under the model's name."""
    if not isinstance(item, McpCall) or item.server_label != HOUSE_LABEL:
        return False
    tool = toolbox.tools.get(item.name)
    return tool is not None and tool.kind is ToolKind.CUSTOM and route(item.name, toolbox) is Route.CLIENT


def unfit_refusal(call: OpenCall, plan: Plan) -> str:
    """What was wrong, and where, in words the model can use."""
    grammar = plan.toolbox.tools[call.name].grammar
    place = None if grammar is None else plan.checks.mismatch(grammar, input_of(call.arguments))
    where = "" if place is None else f" It stops matching at {place}."
    return f"The input does not match the grammar of the tool {call.name!r}.{where} Call it again with one that does."
