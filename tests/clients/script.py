"""What the scripted model says: a pure function of the request.

A cue in the newest user message that has one, or else in the system's, says what to do:

    case:plain        repeats what was said; of a word that is said over and over, once
    case:instructions repeats the system's message
    case:function     calls a tool, then says what it answered            (case:slow-tool, case:shell: the same)
    case:parallel     calls several at once
    case:steps        calls one after the other                           (case:handoff: the same)
    case:tool-error   calls a tool, then says whether it failed
    case:custom       calls a tool that takes free text, with the text between <<< and >>>, or the texts, in turn
    case:structured   answers in JSON that fits response_format; without one it calls a tool with it
    case:reasoning    thinks first; with call: in the cue it calls then, and later says what it had thought
    case:image        says which images and files it was shown            (case:file: the same)
    case:remember     says all that it sees of the conversation
    case:length       is cut short by the limit of tokens
    case:400, case:429, case:500, case:context   the backend refuses
    case:cut          breaks off in the middle     case:fails   an error in the middle of the stream

Which tool, and with what: `call:NAME{"a": 1}`, as often as there are calls; without one, a tool that the request
declares, with arguments that fit its schema. A tool is only called when it is declared. A JSON object in the cue is
what case:structured answers with, as far as the schema has its fields.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from clients.cues import Cue, cue_of
from clients.strict import Json, texts
from clients.values import fitted, fitting

_TEXT = re.compile(r"<<<\n?(.*?)\n?>>>", re.DOTALL)
_FAILURE = re.compile(r"fail|error|exception", re.IGNORECASE)
_OVER_AND_OVER = re.compile(r"\b(\w+)(?: \1\b){9,}")
"""What only fills a context."""

THOUGHT = "First I think about it:"
RETRY_AFTER = 7


@dataclass(frozen=True)
class Says:
    text: str
    reasoning: str = ""
    finish: str = "stop"


@dataclass(frozen=True)
class Calls:
    calls: Sequence[tuple[str, str]]
    """Names and arguments."""
    reasoning: str = ""


@dataclass(frozen=True)
class Refuses:
    status: int
    message: str
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Breaks:
    """Begins to answer; then the connection is gone, or an error comes in the stream."""

    text: str
    error: str | None = None


Answer: TypeAlias = Says | Calls | Refuses | Breaks


def answer(request: Json) -> Answer:
    """What the model does with a request that is well formed."""
    cue = cue_of(request["messages"])
    play = _PLAYS.get(cue.case)
    if play is None:
        return Refuses(400, f"The script has no case:{cue.case}.", "invalid_request_error")
    return play(request, cue)


# ---- tools ----


class Round(NamedTuple):
    name: str
    result: str


def _rounds(since: Sequence[Json]) -> list[list[Round]]:
    """The calls since the cue and what they came to, turn by turn."""
    rounds: list[list[Round]] = []
    names: dict[str, str] = {}
    for message in since:
        if calls := message.get("tool_calls"):
            names = {call["id"]: call["function"]["name"] for call in calls}
            rounds.append([])
        elif message["role"] == "tool":
            rounds[-1].append(Round(names[message["tool_call_id"]], "\n".join(texts(message))))
    return rounds


def _declared(request: Json) -> dict[str, Json]:
    return {tool["function"]["name"]: tool["function"] for tool in request.get("tools") or []}


def _named(name: str, tools: dict[str, Json]) -> Json | None:
    """The tool of this name, or the only one that ends so: a label or a namespace may stand before it."""
    ending = [tool for key, tool in tools.items() if key.endswith(name)]
    return tools.get(name) or (ending[0] if len(ending) == 1 else None)


def _wanted(request: Json, cue: Cue, number: int) -> list[tuple[str, str]] | str:
    """The calls to make, at least `number` of them, or why there are none."""
    tools = _declared(request)
    if not tools:
        return "No tools are offered."
    first = [(name, None) for name in (list(tools) * number)[:number]]
    made: list[tuple[str, str]] = []
    for name, given in cue.calls or first:
        tool = _named(name, tools)
        if tool is None:
            return f"No tool {name} is offered, only {', '.join(tools)}."
        arguments = fitting(tool.get("parameters", {})) if given is None else given
        made.append((tool["name"], json.dumps(arguments)))
    return made


def _called(request: Json, cue: Cue, number: int = 1) -> Answer | None:
    """The calls of the cue, all at once; None when they have been made."""
    if _rounds(cue.since):
        return None
    wanted = _wanted(request, cue, number)
    return Says(wanted) if isinstance(wanted, str) else Calls(wanted)


def _results(cue: Cue) -> str:
    return " and ".join(each.result for turn in _rounds(cue.since) for each in turn)


def _function(request: Json, cue: Cue) -> Answer:
    return _called(request, cue) or Says(_with_sights(f"The tool says: {_results(cue)}.", cue.since))


def _parallel(request: Json, cue: Cue) -> Answer:
    return _called(request, cue, 2) or Says(f"The tools say: {_results(cue)}.")


def _steps(request: Json, cue: Cue) -> Answer:
    done = len(_rounds(cue.since))
    if done >= len(cue.calls):
        return Says(f"The tools say: {_results(cue)}.")
    name, given = cue.calls[done]
    tool = _named(name, _declared(request))
    if tool is None:
        return Says(f"No tool {name} is offered.")
    return Calls([(tool["name"], json.dumps(fitting(tool.get("parameters", {})) if given is None else given))])


def _tool_error(request: Json, cue: Cue) -> Answer:
    verdict = "failed" if _FAILURE.search(_results(cue)) else "did not fail"
    return _called(request, cue) or Says(f"The tool {verdict}: {_results(cue)}.")


def _custom(request: Json, cue: Cue) -> Answer:
    """The free text goes into the one text that the tool takes; of several, each after the one before it."""
    name = cue.calls[0][0] if cue.calls else "apply_patch"
    tool = _named(name, _declared(request))
    given: list[str] = _TEXT.findall(cue.text)
    if tool is None or not given:
        return Says("There is no text between <<< and >>>." if tool else f"No tool {name} is offered.")
    made = [call["function"]["arguments"] for message in cue.since for call in message.get("tool_calls") or ()]
    left = [text for text in given if not any(json.dumps(text) in arguments for arguments in made)]
    if given[-1] not in left:
        return Says(f"The tool says: {_rounds(cue.since)[-1][-1].result}.")
    takes = [key for key, value in tool["parameters"]["properties"].items() if value.get("type") == "string"]
    return Calls([(tool["name"], json.dumps({takes[0]: left[0]}))])


# ---- answers ----


def _plain(_: Json, cue: Cue) -> Answer:
    return Says(f"You said: {once(cue.said)}")


def once(text: str) -> str:
    """The text, with a word that is said over and over in it said once."""
    return _OVER_AND_OVER.sub(r"\1", text)


def _instructions(request: Json, _: Cue) -> Answer:
    found = [text for message in request["messages"] if message["role"] == "system" for text in texts(message)]
    return Says(f"I am told: {' | '.join(found)}")


def _structured(request: Json, cue: Cue) -> Answer:
    if _rounds(cue.since):
        return Says(f"The tool says: {_results(cue)}.")
    match request.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return Says(json.dumps(fitted(cue.json, schema)))
        case {"type": "json_object"}:
            return Says(json.dumps(cue.json))
    for tool in _declared(request).values():
        return Calls([(tool["name"], json.dumps(fitted(cue.json, tool["parameters"])))])
    return Says("No form is asked for.")


def _reasoning(request: Json, cue: Cue) -> Answer:
    if not cue.calls:
        return Says(f"I have thought about: {cue.said}", f"{THOUGHT} {cue.said}")
    if isinstance(called := _called(request, cue), Calls):
        return Calls(called.calls, f"{THOUGHT} {cue.calls[0][0]}")
    thoughts = [message["reasoning_content"] for message in cue.since if message.get("reasoning_content")]
    return called or Says(f"The tool says: {_results(cue)}. I had thought: {' | '.join(thoughts)}", "Now I know.")


def _image(request: Json, _: Cue) -> Answer:
    return Says(_with_sights("", request["messages"]) or "I was shown nothing.")


def _with_sights(text: str, messages: Sequence[Json]) -> str:
    """`text`, and which images and files there are among the messages."""
    sights = [sight for message in messages for sight in _sights(message)]
    return " ".join(filter(None, [text, f"I see {' and '.join(sights)}." if sights else ""]))


def _sights(message: Json) -> Iterator[str]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if part["type"] == "image_url":
            yield f"an image, {digest(part['image_url']['url'])}"
        elif part["type"] == "file":
            yield f"a file {part['file'].get('filename', '')}, {digest(part['file'].get('file_data', ''))}"


def digest(url: str) -> str:
    """What tells that the bytes have come through; an address is repeated, nobody fetches it."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        return f"at {url}"
    content = base64.b64decode(data)
    kind = head.removeprefix("data:").partition(";")[0]
    return f"{kind} of {len(content)} bytes, {hashlib.sha256(content).hexdigest()[:12]}"


def _remember(request: Json, _: Cue) -> Answer:
    return Says(once(" | ".join(line for message in request["messages"] for line in _told(message))))


def _told(message: Json) -> Iterator[str]:
    role = message["role"]
    if thought := message.get("reasoning_content"):
        yield f"{role} thought: {thought}"
    if said := " ".join(texts(message)):
        yield f"{role}: {said}"
    for call in message.get("tool_calls") or ():
        yield f"{role} called {call['function']['name']}: {call['function']['arguments']}"


# ---- failures ----

_REFUSALS = {
    "400": Refuses(400, "This prompt is not to the model's liking.", "invalid_prompt"),
    "context": Refuses(400, "This model's maximum context length is 8 tokens.", "context_length_exceeded"),
    "429": Refuses(429, "Too many requests.", "rate_limit_exceeded", {"retry-after": str(RETRY_AFTER)}),
    "500": Refuses(500, "The engine has crashed.", "internal_error"),
}

_PLAYS: dict[str, Callable[[Json, Cue], Answer]] = {
    "plain": _plain,
    "instructions": _instructions,
    "function": _function,
    "slow-tool": _function,
    "shell": _function,
    "parallel": _parallel,
    "steps": _steps,
    "handoff": _steps,
    "tool-error": _tool_error,
    "custom": _custom,
    "structured": _structured,
    "reasoning": _reasoning,
    "image": _image,
    "file": _image,
    "remember": _remember,
    "length": lambda _, cue: Says(f"You said: {cue.said}", finish="length"),
    "cut": lambda _, cue: Breaks(f"This breaks off: {cue.said}"),
    "fails": lambda _, cue: Breaks(f"This fails: {cue.said}", error="The engine has crashed."),
    **dict.fromkeys(_REFUSALS, lambda _, cue: _REFUSALS[cue.case]),
}
CASES: tuple[str, ...] = tuple(_PLAYS)
"""What the script knows."""
