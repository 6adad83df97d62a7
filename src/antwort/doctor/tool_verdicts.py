"""From answers to findings about tool calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from antwort.config.settings import ToolCalling
from antwort.doctor import advice
from antwort.doctor.answers import Answer, Heard, Speech, hear
from antwort.doctor.engines import Facts
from antwort.doctor.findings import Finding, Value, Verdict
from antwort.doctor.questions import FORCED, TOOLS
from antwort.doctor.verdicts import trouble_with
from antwort.providers.errors import error_for, refuses_tools

Choice: TypeAlias = Literal["auto", "required", "named", "parallel"]

_MARKS = ("<tool_call>", "<|tool_call", "[TOOL_CALLS]", "<|python_tag|>", "<function=", '{"tool_calls"')
"""How calls look in the words of models whose backend does not read them."""
_NAMES = frozenset(tool["function"]["name"] for tool in TOOLS)


class Seen(msgspec.Struct, frozen=True):
    """What was seen of one kind of choice, before it is known what can be done about it."""

    verdict: Verdict
    seen: str
    refusal: str = ""
    is_noticed: bool = False
    """Whether a provider whose `tool_calling` is `auto` sees that it does not work, and asks again."""


def judge(choice: Choice, answer: Answer, facts: Facts) -> Seen:
    if trouble := trouble_with(answer):
        is_noticed = not answer.is_good and refuses_tools(error_for(answer.status, answer.headers, answer.body))
        if answer.is_missing and not is_noticed:
            return Seen("unknown", trouble)
        return Seen("fails", trouble, answer.problem(), is_noticed=is_noticed)
    heard = hear(answer)
    if heard.trouble:
        return Seen("unknown" if answer.fault == "cut" else "fails", heard.trouble)
    return _judge_calls(choice, heard) if heard.calls else _judge_words(choice, heard, facts)


def _judge_calls(choice: Choice, heard: Heard) -> Seen:
    first = heard.calls[0]
    if not all(call.has_arguments for call in heard.calls):
        if heard.is_cut:
            return Seen("unknown", "the call was cut off by its length limit")
        return Seen("fails", f"the arguments are no JSON object: {heard.quoted(first.arguments)!r}")
    if unknown := next((call.name for call in heard.calls if call.name not in _NAMES), None):
        return Seen("fails", f"it called {heard.quoted(unknown)!r}, which it was not offered")
    if choice == "named" and {call.name for call in heard.calls} != {FORCED}:
        return Seen("fails", f"the choice is ignored: it called {heard.quoted(first.name)}", is_noticed=True)
    if choice == "parallel" and len(heard.calls) == 1:
        return Seen("unknown", "one call where two were allowed, which is the model's right")
    more = f" and {len(heard.calls) - 1} more" if len(heard.calls) > 1 else ""
    return Seen("works", f"{heard.quoted(first.name)}({heard.quoted(first.arguments)}){more}")


def _judge_words(choice: Choice, heard: Heard, facts: Facts) -> Seen:
    """Words where a call had to come are noticed; where it only might have, nobody can know."""
    is_forced = choice != "auto"
    if any(mark in heard.text for mark in _MARKS):
        return Seen("fails", f"the call came as text: {heard.quoted(heard.text)!r}", is_noticed=is_forced)
    if facts.offers_tools is False:
        return Seen("fails", "its chat template does not tell the model of tools", is_noticed=is_forced)
    if not heard.text:
        why = "was cut off by its length limit" if heard.is_cut else "was empty"
        return Seen("unknown", f"the answer {why}")
    if not is_forced:
        return Seen("unknown", f"it answered in words, which is its right: {heard.quoted(heard.text)!r}")
    return Seen("fails", f"the choice is ignored: {heard.quoted(heard.text)!r}", is_noticed=True)


class Tools(msgspec.Struct, frozen=True):
    """What all findings about tools are made of."""

    seen: Mapping[Choice, Seen]
    schema: Verdict
    facts: Facts
    model: str
    mode: ToolCalling = "auto"
    """What is set about the backend."""
    speech: Speech = "chat"
    models: int = 1
    """How many models the backend's settings hold for."""

    @property
    def has_called(self) -> bool:
        return any(each.verdict == "works" for each in self.seen.values())

    def flag(self, refusal: str) -> str:
        """What would make the backend call by itself: where it never does, or where its refusal says so."""
        engine = "unknown" if self.has_called else self.facts.engine.name
        return advice.for_tools(engine, self.model, refusal)


def about_choices(tools: Tools) -> tuple[Finding, ...]:
    """What to set at the backend is told once, where it is first missed."""
    first = next((choice for choice, each in tools.seen.items() if each.verdict == "fails"), None)
    return tuple(
        _about_choice(f"tools.{choice}", each, tools, tools.flag(each.refusal) if choice == first else "")
        for choice, each in tools.seen.items()
    )


def _about_choice(probe: str, seen: Seen, tools: Tools, flag: str = "") -> Finding:
    if seen.verdict != "fails":
        return Finding(probe=probe, verdict=seen.verdict, seen=seen.seen)
    if tools.speech == "responses":
        remedy = "of a backend that speaks the Responses API itself, antwort takes calls as they come"
        return Finding(probe=probe, verdict="fails", seen=seen.seen, remedy=remedy, blocks=not tools.has_called)
    is_unnoticed = tools.mode == "native" or not seen.is_noticed
    is_helpless = tools.schema == "fails"
    return Finding(
        probe=probe,
        verdict="fails",
        seen=seen.seen,
        remedy=advice.about_tools(tools.schema, tools.mode, flag, is_noticed=seen.is_noticed),
        blocks=not tools.has_called if is_helpless else is_unnoticed,
        settings={"tool_calling": "constrained"} if tools.schema == "works" and is_unnoticed else {},
    )


def about_streamed(tools: Tools, streamed: tuple[Answer, ...], whole: Answer | None) -> Finding:
    """`whole`: an answer that was not streamed, asked for where no streamed one had a call in it."""
    heard = [hear(answer) for answer in streamed if answer.is_good and answer.is_streamed]
    pieces = [call.pieces for each in heard for call in each.calls]
    if pieces:
        most = max(pieces)
        seen = f"arguments in up to {most} pieces" if most > 1 else "each call whole, in one piece"
        return Finding(probe="tools.streamed", verdict="works", seen=seen)
    if whole is not None and whole.is_good and hear(whole).calls:
        return _about_choice("tools.streamed", Seen("fails", "calls come only where the answer is not streamed"), tools)
    return Finding(probe="tools.streamed", verdict="unknown", seen="no call came that could be looked at")


def settings_of(tools: Tools) -> dict[str, Value]:
    """How tools are to be called, where that is beyond doubt; `auto` finds out the rest by itself, for each model."""
    if tools.speech == "responses" or tools.models > 1:
        return {}
    told = {choice: each.verdict for choice, each in tools.seen.items() if choice != "parallel"}
    if told and all(verdict == "works" for verdict in told.values()):
        return {"tool_calling": "native"}
    never = told.get("auto") != "works" and told.get("required") == told.get("named") == "fails"
    if never and tools.schema == "works":
        return {"tool_calling": "constrained"}
    return {}
