"""What a backend answered: the raw answer, and what antwort's parsers make of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
"""Why there is no complete answer. `endless`: it went on after the size or time limit."""
ApiKind: TypeAlias = Literal["chat", "responses"]

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_BUSY = frozenset({429, 503})
_QUOTE_LENGTH = 48


class Chunk(NamedTuple):
    """The data of one read, and the seconds from the request to it."""

    seconds: float
    data: bytes


class BackendAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is 0 where no response came."""

    status: int = 0
    headers: Mapping[str, str] = {}
    chunks: tuple[Chunk, ...] = ()
    seconds: float = 0.0
    fault: Fault = ""
    reason: str = ""
    secrets: tuple[str, ...] = ()
    """Strings to remove from anything that is shown."""
    kind: ApiKind = "chat"

    @property
    def body(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_missing(self) -> bool:
        """Whether it tells nothing about the question: it did not come, or the problem may be temporary."""
        is_lost = self.fault in ("slow", "unasked", "unreachable", "cut", "garbled") and not self.is_good
        return is_lost or self.status in _TRANSIENT

    @property
    def is_busy(self) -> bool:
        return self.status in _BUSY

    @property
    def is_redirect(self) -> bool:
        return 300 <= self.status < 400

    @property
    def location(self) -> str:
        """The target of a redirect, without its query; empty if there is none."""
        target = self.headers.get("location", "").partition("#")[0].partition("?")[0]
        return quote_name(target, self.secrets, 200)

    @property
    def is_streamed(self) -> bool:
        return "event-stream" in self.headers.get("content-type", "").lower()

    @property
    def content_type(self) -> str:
        return self.quote(self.headers.get("content-type", "").partition(";")[0].strip())

    def problem(self) -> str:
        """Return the message of an error object; empty if there is none."""
        found = parse_error_object(self.body)
        return self.quote(found.message, 200) if found else ""

    def decoded(self) -> Any:
        """Return the JSON body; None if it is not JSON."""
        return _decode(self.body)

    def quote(self, text: str, length: int = _QUOTE_LENGTH) -> str:
        return quote(text, self.secrets, length)


def quote(text: str, secrets: tuple[str, ...] = (), length: int = _QUOTE_LENGTH) -> str:
    """Return words of a backend or a model for display: one short line, without secrets and control characters."""
    return _shorten(printable(scrub(text, secrets)), length)


def quote_name(text: str, secrets: tuple[str, ...] = (), length: int = _QUOTE_LENGTH) -> str:
    """Return a name or an address for display: only the given secrets are removed, not what may look like one."""
    return _shorten(printable(remove_secrets(text, secrets)), length)


def _shorten(line: str, length: int) -> str:
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def _decode(data: str | bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None


# ---- what the parsers make of it ----


class ParsedCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    pieces: int

    @property
    def has_arguments(self) -> bool:
        return isinstance(_decode(self.arguments or "{}"), dict)


class ParsedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A good answer, as antwort's parsers understand it."""

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = ""
    calls: tuple[ParsedCall, ...] = ()
    finish: str = ""
    usage: Usage | None = None
    deltas: int = 0
    first: float | None = None
    last: float = 0.0
    """The times of the first and the last delta."""
    is_done: bool = False
    """Whether a stream ended with `[DONE]`."""
    trouble: str = ""
    """Why it could not be parsed, for display."""
    secrets: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        return self.finish == "length"

    def quote(self, text: str) -> str:
        return quote(text, self.secrets)


def parse_answer(answer: BackendAnswer) -> ParsedAnswer:
    """Parse a good answer. Any error becomes its `trouble`."""
    sent, is_chat = SentRequest(secrets=answer.secrets), answer.kind == "chat"
    timed: list[tuple[float, Delta]] = []
    trouble = ""
    try:
        parser = ChatParser(sent) if is_chat else ResponsesParser(sent)
        if answer.is_streamed:
            for seconds, data in answer.chunks:
                timed += [(seconds, delta) for delta in parser.feed(data)]
            timed += [(answer.seconds, delta) for delta in parser.finish()]
        else:
            timed = [(answer.seconds, delta) for delta in parser.parse_body(answer.body)]
    except AntwortError as exc:
        trouble = answer.quote(str(exc).rstrip("."), 200)
    if answer.fault == "endless":  # we hung up: judge it like an answer that its length limit has cut off
        timed.append((answer.seconds, Finished("length")))
        trouble = ""
    deltas = [delta for _, delta in timed]
    times = [seconds for seconds, delta in timed if not isinstance(delta, Finished)]
    end = next((delta for delta in deltas if isinstance(delta, Finished)), Finished(""))
    payloads = [answer.body]
    if answer.is_streamed:
        events = SseParser()
        payloads = [*events.feed(answer.body), *events.finish()]
    return ParsedAnswer(
        text="".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        reasoning="".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        reasoning_field=next(_reasoning_fields(payloads), ""),
        calls=_calls(deltas),
        finish=end.finish,
        usage=end.usage,
        deltas=len(times),
        first=times[0] if times else None,
        last=times[-1] if times else 0.0,
        is_done=not is_chat or any(payload.startswith(b"[DONE]") for payload in payloads),
        trouble=trouble,
        secrets=answer.secrets,
    )


def _reasoning_fields(payloads: Sequence[bytes]) -> Iterator[str]:
    """Yield the fields that contain reasoning. Some backends always send an empty one, which does not count."""
    for payload in payloads:
        decoded = _decode(payload)
        choices = decoded.get("choices") if isinstance(decoded, dict) else None
        for choice in choices if isinstance(choices, list) else []:
            message = (choice.get("delta") or choice.get("message")) if isinstance(choice, dict) else None
            if isinstance(message, dict):
                for field in ("reasoning_content", "reasoning"):
                    if isinstance(message.get(field), str) and message[field]:
                        yield field


def _calls(deltas: Sequence[Delta]) -> tuple[ParsedCall, ...]:
    calls: dict[int, ParsedCall] = {}
    for delta in deltas:
        if isinstance(delta, CallDelta):
            so_far = calls.get(delta.index, ParsedCall("", "", 0))
            pieces = so_far.pieces + bool(delta.arguments)
            calls[delta.index] = ParsedCall(so_far.name + delta.name, so_far.arguments + delta.arguments, pieces)
    return tuple(calls.values())
