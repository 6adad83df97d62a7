"""From answers to findings about tool calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from antwort.doctor import advice
from antwort.doctor.answers import Answer, Heard, hear, quoted
from antwort.doctor.engines import Facts
from antwort.doctor.findings import Finding, Value, Verdict
from antwort.doctor.questions import FORCED, TOOLS
from antwort.doctor.verdicts import trouble_with

Choice: TypeAlias = Literal["auto", "required", "named", "parallel"]

_MARKS = ("<tool_call>", "<|tool_call", "[TOOL_CALLS]", "<|python_tag|>", "<function=", '{"tool_calls"')
"""How calls look in the words of models whose backend does not read them."""
_NAMES = frozenset(tool["function"]["name"] for tool in TOOLS)


class Seen(msgspec.Struct, frozen=True):
    """What was seen of one kind of choice, before it is known what can be done about it."""

    verdict: Verdict
    seen: str
    refusal: str = ""


def judge(choice: Choice, answer: Answer, facts: Facts) -> Seen:
    if answer.is_missing:
        return Seen("unknown", trouble_with(answer))
    if trouble := trouble_with(answer):
        return Seen("fails", trouble, answer.problem())
    heard = hear(answer)
    if heard.trouble:
        return Seen("fails", heard.trouble.rstrip("."))
    return _judge_calls(choice, heard) if heard.calls else _judge_words(choice, heard, facts)


def _judge_calls(choice: Choice, heard: Heard) -> Seen:
    first = heard.calls[0]
    if not all(call.has_arguments for call in heard.calls):
        if heard.is_cut:
            return Seen("unknown", "the call was cut off by its length limit")
        return Seen("fails", f"the arguments are no JSON object: {quoted(first.arguments)!r}")
    if unknown := next((call.name for call in heard.calls if call.name not in _NAMES), None):
        return Seen("fails", f"it called {quoted(unknown)!r}, which it was not offered")
    if choice == "named" and {call.name for call in heard.calls} != {FORCED}:
        return Seen("fails", f"the choice is ignored: it called {quoted(first.name)}")
    if choice == "parallel" and len(heard.calls) == 1:
        return Seen("unknown", "one call where two were allowed, which is the model's right")
    more = f" and {len(heard.calls) - 1} more" if len(heard.calls) > 1 else ""
    return Seen("works", f"{quoted(first.name)}({quoted(first.arguments)}){more}")


def _judge_words(choice: Choice, heard: Heard, facts: Facts) -> Seen:
    if any(mark in heard.text for mark in _MARKS):
        return Seen("fails", f"the call came as text: {quoted(heard.text)!r}")
    if facts.offers_tools is False:
        return Seen("fails", "its chat template does not tell the model of tools")
    if not heard.text:
        why = "was cut off by its length limit" if heard.is_cut else "was empty"
        return Seen("unknown", f"the answer {why}")
    if choice == "auto":
        return Seen("unknown", f"it answered in words, which is its right: {quoted(heard.text)!r}")
    return Seen("fails", f"the choice is ignored: {quoted(heard.text)!r}")


def about_choices(seen: Mapping[Choice, Seen], schema: Verdict, facts: Facts, model: str) -> tuple[Finding, ...]:
    refusal = next((each.refusal for each in seen.values() if each.refusal), "")
    flag = advice.for_tools(facts.engine.name, model, refusal)
    has_called = any(each.verdict == "works" for each in seen.values())
    return tuple(
        Finding(
            probe=f"tools.{choice}",
            verdict=each.verdict,
            seen=each.seen,
            remedy=advice.about_tools(schema, "" if has_called else flag) if each.verdict == "fails" else "",
            blocks=each.verdict == "fails" and schema == "fails" and not has_called,
        )
        for choice, each in seen.items()
    )


def about_streamed(streamed: tuple[Answer, ...], whole: Answer | None, schema: Verdict) -> Finding:
    """`whole`: an answer that was not streamed, asked for where no streamed one had a call in it."""
    heard = [hear(answer) for answer in streamed if answer.is_good and answer.is_streamed]
    pieces = [call.pieces for each in heard for call in each.calls]
    if pieces:
        most = max(pieces)
        seen = f"arguments in up to {most} pieces" if most > 1 else "each call whole, in one piece"
        return Finding(probe="tools.streamed", verdict="works", seen=seen)
    if whole is not None and whole.is_good and hear(whole).calls:
        seen = "calls come only where the answer is not streamed"
        return Finding(probe="tools.streamed", verdict="fails", seen=seen, remedy=advice.about_tools(schema, ""))
    return Finding(probe="tools.streamed", verdict="unknown", seen="no call came that could be looked at")


def settings_of(seen: Mapping[Choice, Seen], schema: Verdict) -> dict[str, Value]:
    """How tools are to be called, where that is beyond doubt; `auto` finds out the rest by itself."""
    told = {choice: each.verdict for choice, each in seen.items() if choice != "parallel"}
    if told and all(verdict == "works" for verdict in told.values()):
        return {"tool_calling": "native"}
    if "works" not in told.values() and "fails" in told.values() and schema == "works":
        return {"tool_calling": "constrained"}
    return {}
