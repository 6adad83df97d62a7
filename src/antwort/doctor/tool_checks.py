"""Turn answers into findings about tool calls, with what to do about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from antwort.config.settings import ToolCalling
from antwort.doctor.answers import ApiKind, BackendAnswer, parse_answer
from antwort.doctor.checks import FOR_WRITE, joined, trouble_with
from antwort.doctor.engines import Facts
from antwort.doctor.findings import EngineName, Finding, Value, Verdict, fails, unknown, works
from antwort.doctor.questions import NAMED_FUNCTION, TOOLS
from antwort.providers.errors import error_for, refuses_tools

Choice: TypeAlias = Literal["auto", "required", "named", "parallel"]

_CALL_MARKS = ("<tool_call>", "<|tool_call", "[TOOL_CALLS]", "<|python_tag|>", "<function=", '{"tool_calls"')
"""How calls look in the text of models whose backend does not parse them."""
_NAMES = frozenset(tool["function"]["name"] for tool in TOOLS)
_VLLM_PARSERS = (
    ("qwen3-coder", "qwen3_coder"),
    ("qwen", "hermes"),
    ("hermes", "hermes"),
    ("llama-3", "llama3_json"),
    ("mistral", "mistral"),
)
"""vLLM's tool parsers by a part of the model's name. The first match counts."""
_FLAGS: Mapping[EngineName, str] = {
    "sglang": "start SGLang with --tool-call-parser",
    "llama.cpp": "give llama.cpp a template that offers tools: --chat-template-file FILE",
    "ollama": "take a model for which `ollama show` lists tools",
}


class ChoiceResult(msgspec.Struct, frozen=True):
    """The answer to one tool choice, before it is known what can be done about it."""

    verdict: Verdict
    seen: str
    refusal: str = ""
    is_noticed: bool = False
    """Whether a provider with `tool_calling: auto` notices that it does not work, and asks again."""


def check_choice(choice: Choice, answer: BackendAnswer, facts: Facts) -> ChoiceResult:
    if trouble := trouble_with(answer):
        is_noticed = not answer.is_good and refuses_tools(error_for(answer.status, answer.headers, answer.body))
        if answer.is_missing and not is_noticed:
            return ChoiceResult("unknown", trouble)
        return ChoiceResult("fails", trouble, answer.problem(), is_noticed=is_noticed)
    answered = parse_answer(answer)
    text, calls = answered.text, answered.calls
    if answered.trouble:
        return ChoiceResult("unknown" if answer.fault == "cut" else "fails", answered.trouble)
    if calls:
        name, arguments = answered.quote(calls[0].name), answered.quote(calls[0].arguments)
        if not all(call.has_arguments for call in calls):
            if answered.is_cut:
                return ChoiceResult("unknown", "the call was cut off by its length limit")
            return ChoiceResult("fails", f"the arguments are no JSON object: {arguments!r}")
        if invented := next((call.name for call in calls if call.name not in _NAMES), None):
            return ChoiceResult("fails", f"it called {answered.quote(invented)!r}, which it was not offered")
        if choice == "named" and {call.name for call in calls} != {NAMED_FUNCTION}:
            return ChoiceResult("fails", f"the choice is ignored: it called {name}", is_noticed=True)
        if choice == "parallel" and len(calls) == 1:
            return ChoiceResult("unknown", "one call where two were allowed, which is the model's right")
        more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
        return ChoiceResult("works", f"{name}({arguments}){more}")
    # Text instead of a call is noticed where a call was required; elsewhere nobody can know whether one was meant.
    is_forced = choice != "auto"
    if any(mark in text for mark in _CALL_MARKS):
        return ChoiceResult("fails", f"the call came as text: {answered.quote(text)!r}", is_noticed=is_forced)
    if facts.offers_tools is False:
        return ChoiceResult("fails", "its chat template does not tell the model of tools", is_noticed=is_forced)
    if not text:
        return ChoiceResult(
            "unknown", f"the answer was {'cut off by its length limit' if answered.is_cut else 'empty'}"
        )
    if not is_forced:
        return ChoiceResult("unknown", f"it answered in words, which is its right: {answered.quote(text)!r}")
    return ChoiceResult("fails", f"the choice is ignored: {answered.quote(text)!r}", is_noticed=True)


class ToolResults(msgspec.Struct, frozen=True):
    """What all findings about tools are made of."""

    seen: Mapping[Choice, ChoiceResult]
    schema: Verdict
    """Whether answers follow a JSON schema: with that, antwort makes tool calls by constrained decoding."""
    facts: Facts
    model: str
    mode: ToolCalling = "auto"
    """The configured `tool_calling` of the backend."""
    kind: ApiKind = "chat"
    models: int = 1
    """How many models the backend's settings hold for."""

    @property
    def has_called(self) -> bool:
        return any(each.verdict == "works" for each in self.seen.values())


def check_choices(tools: ToolResults) -> tuple[Finding, ...]:
    """Return the findings about the tool choices. The flag to set is named once, at the first one that fails."""
    first = next((choice for choice, each in tools.seen.items() if each.verdict == "fails"), None)
    engine: EngineName = "unknown" if tools.has_called else tools.facts.engine.name
    return tuple(
        _choice_finding(
            f"tools.{choice}", each, tools, flag_for_tools(engine, tools.model, each.refusal) if choice == first else ""
        )
        for choice, each in tools.seen.items()
    )


def flag_for_tools(engine: EngineName, model: str, refusal: str = "") -> str:
    """Return what makes the backend call tools by itself; empty if that is not known."""
    if "--jinja" in refusal:
        return "start llama.cpp with --jinja"
    if engine == "vllm" or "--enable-auto-tool-choice" in refusal:
        parser = next((parser for part, parser in _VLLM_PARSERS if part in model.lower()), "PARSER")
        return f"start vLLM with --enable-auto-tool-choice --tool-call-parser {parser}"
    return _FLAGS.get(engine, "")


def _choice_finding(probe: str, result: ChoiceResult, tools: ToolResults, flag: str = "") -> Finding:
    if result.verdict != "fails":
        return Finding(probe=probe, verdict=result.verdict, seen=result.seen)
    if tools.kind == "responses":
        remedy = "of a backend that speaks the Responses API itself, antwort takes calls as they come"
        return fails(probe, result.seen, remedy, blocks=not tools.has_called)
    is_unnoticed = tools.mode == "native" or not result.is_noticed
    has_schemas = tools.schema == "works"
    if_schemas = "" if has_schemas else ", if JSON schemas work there"
    or_flag = f"or {flag}" if flag else ""
    if tools.schema == "fails":
        remedy = joined("antwort cannot make up for it without JSON schemas", flag)
    elif tools.mode == "constrained":
        remedy = "antwort asks with constrained decoding (tool_calling: constrained)"
    elif is_unnoticed:
        proof = f": {FOR_WRITE}" if has_schemas else if_schemas
        remedy = joined(f"antwort makes up for it once `tool_calling` is constrained{proof}", or_flag)
    else:
        remedy = joined(f"antwort asks again with constrained decoding (tool_calling: auto){if_schemas}", or_flag)
    return fails(
        probe,
        result.seen,
        remedy,
        {"tool_calling": "constrained"} if has_schemas and is_unnoticed else {},
        blocks=not tools.has_called if tools.schema == "fails" else is_unnoticed,
    )


def check_streamed(tools: ToolResults, streamed: tuple[BackendAnswer, ...], whole: BackendAnswer | None) -> Finding:
    """`whole`: an answer that was not streamed, asked for where no streamed one had a call in it."""
    calls = [call for each in streamed if each.is_good and each.is_streamed for call in parse_answer(each).calls]
    if calls:
        most = max(call.pieces for call in calls)
        seen = f"arguments in up to {most} pieces" if most > 1 else "each call whole, in one piece"
        return works("tools.streamed", seen)
    if whole is not None and whole.is_good and parse_answer(whole).calls:
        result = ChoiceResult("fails", "calls come only where the answer is not streamed")
        return _choice_finding("tools.streamed", result, tools)
    return unknown("tools.streamed", "no call came that could be looked at")


def tool_settings(tools: ToolResults) -> dict[str, Value]:
    """Return `tool_calling` where it is beyond doubt. `auto` finds out the rest by itself, for each model."""
    if tools.kind == "responses" or tools.models > 1:
        return {}
    verdicts = {choice: each.verdict for choice, each in tools.seen.items() if choice != "parallel"}
    if verdicts and all(verdict == "works" for verdict in verdicts.values()):
        return {"tool_calling": "native"}
    never = verdicts.get("auto") != "works" and verdicts.get("required") == verdicts.get("named") == "fails"
    return {"tool_calling": "constrained"} if never and tools.schema == "works" else {}
