"""What a backend answered, as it came, and what it says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from antwort.api.responses import Usage
from antwort.config.problems import printable
from antwort.errors import AntwortError
from antwort.net.sse import SseParser
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, TextDelta
from antwort.providers.chat_parser import ChatParser
from antwort.providers.errors import SentRequest, parse_error_object, remove_secrets, scrub
from antwort.providers.responses_parser import ResponsesParser

Fault: TypeAlias = Literal["", "unreachable", "slow", "endless", "cut", "garbled", "unasked"]
"""Why there is no answer, or no whole one. `endless`: it was still coming when enough had been read."""

Speech: TypeAlias = Literal["chat", "responses"]
"""What was spoken: Chat Completions, or the Responses API."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Of an answer that may be another one the next time."""
_BUSY = frozenset({429, 503})
_QUOTE = 48
_FIELDS = ("reasoning_content", "reasoning")


class Piece(NamedTuple):
    """What one read brought, and when: seconds after the question."""

    seconds: float
    data: bytes


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is 0 where none came."""

    status: int = 0
    headers: Mapping[str, str] = {}
    pieces: tuple[Piece, ...] = ()
    seconds: float = 0.0
    fault: Fault = ""
    reason: str = ""
    secrets: tuple[str, ...] = ()
    """What must not be repeated of it."""
    speech: Speech = "chat"

    @property
    def body(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_missing(self) -> bool:
        """Whether it says nothing about what was asked: it did not come, or the backend could not just then."""
        is_lost = self.fault in ("slow", "unasked", "unreachable", "cut", "garbled") and not self.is_good
        return is_lost or self.status in _PASSING

    @property
    def is_busy(self) -> bool:
        return self.status in _BUSY

    @property
    def is_redirect(self) -> bool:
        return 300 <= self.status < 400

    @property
    def location(self) -> str:
        """Where it sends whoever asks, without the query; empty where it does not say."""
        told = self.headers.get("location", "").partition("#")[0].partition("?")[0]
        return named(told, self.secrets, 200)

    @property
    def is_streamed(self) -> bool:
        return "event-stream" in self.headers.get("content-type", "").lower()

    def problem(self) -> str:
        """The words of an error, fit to be shown; empty where there are none."""
        found = parse_error_object(self.body)
        return self.quoted(found.message, 200) if found else ""

    def plain(self) -> Any:
        """The body as plain values; None where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (ValueError, RecursionError):
            return None

    def quoted(self, text: str, most: int = _QUOTE) -> str:
        """Words of it, fit to be shown."""
        return quoted(text, self.secrets, most)


class HeardCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    pieces: int

    @property
    def has_arguments(self) -> bool:
        try:
            return isinstance(msgspec.json.decode(self.arguments or "{}"), dict)
        except (ValueError, RecursionError):
            return False


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, as antwort understands it."""

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = ""
    """The field that the reasoning came in."""
    calls: tuple[HeardCall, ...] = ()
    finish: str = ""
    usage: Usage | None = None
    deltas: int = 0
    first: float | None = None
    last: float = 0.0
    """When the first and the last piece of what the model said came."""
    is_done: bool = False
    """Whether a stream ended with its `[DONE]`."""
    trouble: str = ""
    """What is wrong with it, fit to be shown."""
    secrets: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        return self.finish == "length"

    def quoted(self, text: str) -> str:
        """Words of it, fit to be shown."""
        return quoted(text, self.secrets)


def hear(answer: Answer) -> Heard:
    """Of a good answer; anything that is wrong with it is told as `trouble`."""
    sent, is_chat = SentRequest(secrets=answer.secrets), answer.speech != "responses"
    timed: list[tuple[float, Delta]] = []
    trouble = ""
    try:
        parser = ChatParser(sent) if is_chat else ResponsesParser(sent)
        if answer.is_streamed:
            for seconds, data in answer.pieces:
                timed += [(seconds, delta) for delta in parser.feed(data)]
            timed += [(answer.seconds, delta) for delta in parser.finish()]
        else:
            body = b"".join([data for _, data in answer.pieces])
            timed = [(answer.seconds, delta) for delta in parser.parse_body(body)]
    except AntwortError as exc:
        trouble = answer.quoted(str(exc).rstrip("."), 200)
    if answer.fault == "endless":  # it was hung up on: what came is judged like an answer that a limit cut off
        timed.append((answer.seconds, Finished("length")))
        trouble = ""
    return _heard(timed, answer, trouble)


def _heard(timed: Sequence[tuple[float, Delta]], answer: Answer, trouble: str) -> Heard:
    deltas = [delta for _, delta in timed]
    times = [seconds for seconds, delta in timed if not isinstance(delta, Finished)]
    end = next((delta for delta in deltas if isinstance(delta, Finished)), Finished(""))
    payloads = _payloads(answer)
    return Heard(
        text="".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        reasoning="".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        reasoning_field=_reasoning_field(payloads),
        calls=_calls(deltas),
        finish=end.finish,
        usage=end.usage,
        deltas=len(times),
        first=times[0] if times else None,
        last=times[-1] if times else 0.0,
        is_done=answer.speech == "responses" or any(payload.startswith(b"[DONE]") for payload in payloads),
        trouble=trouble,
        secrets=answer.secrets,
    )


def _payloads(answer: Answer) -> list[bytes]:
    if not answer.is_streamed:
        return [answer.body]
    parser = SseParser()
    return [*parser.feed(answer.body), *parser.finish()]


def _reasoning_field(payloads: Sequence[bytes]) -> str:
    """Which field has words in it; a field that is always there and empty says nothing."""
    for payload in payloads:
        for message in _messages(payload):
            for field in _FIELDS:
                if isinstance(message.get(field), str) and message[field]:
                    return field
    return ""


def _messages(payload: bytes) -> list[dict[str, Any]]:
    try:
        told = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return []
    choices = told.get("choices") if isinstance(told, dict) else None
    found = [
        choice.get("delta") or choice.get("message")
        for choice in (choices if isinstance(choices, list) else [])
        if isinstance(choice, dict)
    ]
    return [message for message in found if isinstance(message, dict)]


def _calls(deltas: Sequence[Delta]) -> tuple[HeardCall, ...]:
    found: dict[int, HeardCall] = {}
    for delta in deltas:
        if isinstance(delta, CallDelta):
            so_far = found.get(delta.index, HeardCall("", "", 0))
            found[delta.index] = HeardCall(
                so_far.name + delta.name,
                so_far.arguments + delta.arguments,
                so_far.pieces + bool(delta.arguments),
            )
    return tuple(found.values())


def quoted(text: str, secrets: tuple[str, ...] = (), most: int = _QUOTE) -> str:
    """A backend's or a model's words on one line, cut short, with nothing in them that a terminal would obey."""
    return _short(printable(scrub(text, secrets)), most)


def named(text: str, secrets: tuple[str, ...] = (), most: int = _QUOTE) -> str:
    """The same of a name or an address: only what is known to be secret goes, not what may look like it."""
    return _short(printable(remove_secrets(text, secrets)), most)


def _short(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"
