"""Parse backends' answers: what the parsers of every API share. Pure.

Of a stream, `feed` takes bytes and never raises; `finish` ends the answer and raises what went wrong. So the deltas
before a failure are always delivered, and they are the same however the bytes were split into reads. A whole answer is
parsed by one function, like one event of a stream.

The size of an answer is limited while it arrives: at the limit the parser ends it with the finish `MAX_OUTPUT_BYTES`
and sets `is_cut`, and the caller closes the connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from antwort.api.decoding import repair_surrogates
from antwort.api.items import LogProb, TopLogProb
from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.errors import AntwortError, BackendError
from antwort.net.sse import SseParser
from antwort.providers.base import (
    MAX_OUTPUT_BYTES,
    CallDelta,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antwort.providers.errors import MAX_TOKEN_COUNT, UNKNOWN_REQUEST, SentRequest

DEFAULT_OUTPUT_BYTES = 8 * 2**20
"""The default limit for the text, reasoning and calls of one answer."""
CALL_OVERHEAD_BYTES = 1024
"""The size of a call besides its name and arguments: a call with empty ones takes memory, too."""
_MIN_JSON_LIMIT_BYTES = 16 * 2**20
_JSON_BYTES_PER_OUTPUT_BYTE = 4

DECODE_ERRORS = (ValueError, RecursionError)
"""What a JSON decoder raises: bad JSON, wrong types and bad UTF-8 are all ValueErrors."""


class AnswerParser(msgspec.Struct, eq=False):
    """Parse one answer, streamed as server-sent events or whole, into deltas. The last delta is `Finished`."""

    sent: SentRequest = UNKNOWN_REQUEST
    max_bytes: int = DEFAULT_OUTPUT_BYTES
    ended: bool = False
    """Whether the answer is complete or has failed; further bytes are ignored."""
    is_cut: bool = False
    """Whether this parser ended the answer at its size limit, while the backend goes on."""
    is_whole: bool = False
    """Whether the answer is no stream."""
    _events: SseParser = msgspec.field(default_factory=SseParser)
    _failure: AntwortError | None = None
    _size: int = 0
    """Bytes of the output so far."""

    def _parse(self, payload: bytes, out: list[Delta]) -> None:
        """Append the deltas of one event, or of the whole answer, and count their bytes. What cannot be decoded raises
        and changes nothing.
        """
        raise NotImplementedError

    def _end(self, out: list[Delta]) -> None:
        """Handle the end of an answer that has neither ended nor failed before."""
        raise NotImplementedError

    def feed(self, data: bytes) -> list[Delta]:
        """Parse the next bytes of a stream."""
        out: list[Delta] = []
        events = self._events
        for payload in events.feed(data):
            if self.ended:
                break
            try:
                self._parse(payload, out)
            except DECODE_ERRORS:
                self._parse_repaired(payload, out)
        if events.open_size > _MIN_JSON_LIMIT_BYTES and events.open_size > max_json_bytes(self.max_bytes):
            self._fail(BackendError("The backend sent an event that is too large."))
        return out if self._size <= self.max_bytes else self._cut(out)

    def finish(self) -> list[Delta]:
        """Return the remaining deltas, or raise what went wrong: a `BackendCut` where the end of the answer is
        missing.
        """
        out: list[Delta] = []
        if not self.ended:
            with suppress(*DECODE_ERRORS):  # the stream was cut inside the event
                for payload in self._events.finish():  # an event without its blank line, if it is complete
                    self._parse(payload, out)
            if not self.ended:
                self._end(out)
        if self._size > self.max_bytes and not self.is_cut:
            return self._cut(out)
        if self._failure is not None:
            raise self._failure
        return out

    def parse_body(self, body: bytes) -> list[Delta]:
        """Parse a whole answer, and cut its output at the size limit. Raises what went wrong."""
        out: list[Delta] = []
        self.is_whole = True
        try:
            self._parse(body, out)
        except DECODE_ERRORS:
            self._parse_repaired(body, out)
        if not self.ended:
            self._end(out)
        if self._failure is not None:
            raise self._failure
        return out if len(body) <= self.max_bytes else truncate(out, self.max_bytes)

    def _fail(self, error: AntwortError) -> None:
        if not self.ended:
            self._failure, self.ended = error, True

    def _parse_repaired(self, payload: bytes, out: list[Delta]) -> None:
        """Parse JSON again with its lone surrogates replaced; fail where that does not help."""
        try:
            self._parse(repair_surrogates(payload), out)
        except DECODE_ERRORS as exc:
            what = "an answer" if self.is_whole else "an event"
            error = BackendError(f"The backend sent {what} that cannot be understood.")
            error.__cause__ = exc
            self._fail(error)

    def _cut(self, out: list[Delta]) -> list[Delta]:
        """End the answer, and return as much of the last deltas as the limit allows."""
        self.ended = self.is_cut = True
        self._failure = None
        size_before = self._size - sum(map(delta_size, out))
        kept = truncate(out, self.max_bytes - size_before)
        if not (kept and isinstance(kept[-1], Finished)):  # the excess is in calls that are still buffered
            kept.append(Finished(MAX_OUTPUT_BYTES))
        return kept


# ---- size limits ----


def max_json_bytes(max_output_bytes: int) -> int:
    """Return the limit for the JSON of one event or body: it has more fields than the output, and escapes."""
    return max(_MIN_JSON_LIMIT_BYTES, _JSON_BYTES_PER_OUTPUT_BYTE * max_output_bytes)


def byte_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def delta_size(delta: Delta) -> int:
    """Return what a delta counts for: its bytes, and an overhead for the first delta of a call."""
    match delta:
        case Finished():
            return 0
        case CallDelta():
            return byte_size(delta.name) + byte_size(delta.arguments) + (CALL_OVERHEAD_BYTES if delta.name else 0)
        case _:
            return byte_size(delta.text)


def truncate(deltas: Sequence[Delta], max_bytes: int) -> list[Delta]:
    """Return the deltas up to a size. If there are more, the last one ends with the finish `MAX_OUTPUT_BYTES`."""
    out: list[Delta] = []
    remaining = max_bytes
    for delta in deltas:
        size = delta_size(delta)
        if size > remaining:
            last = deltas[-1]
            out += _truncate_delta(delta, remaining)
            out.append(Finished(MAX_OUTPUT_BYTES, last.usage if isinstance(last, Finished) else None))
            break
        out.append(delta)
        remaining -= size
    return out


def _truncate_delta(delta: Delta, max_bytes: int) -> list[Delta]:
    """Return the beginning of a delta; nothing where a call's whole name does not fit."""
    match delta:
        case CallDelta():
            max_bytes -= byte_size(delta.name) + (CALL_OVERHEAD_BYTES if delta.name else 0)
            if max_bytes < 0:
                return []
            return [CallDelta(delta.index, delta.name, _truncate_text(delta.arguments, max_bytes))]
        case TextDelta() | ReasoningDelta() | RefusalDelta() if text := _truncate_text(delta.text, max_bytes):
            return [type(delta)(text)]
    return []


def _truncate_text(text: str, max_bytes: int) -> str:
    return text.encode()[:max_bytes].decode(errors="ignore")


# ---- usage and log probabilities ----

TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_COUNT)]
"""A plausible number of tokens: others would spoil sums."""


class ReportedDetails(msgspec.Struct, gc=False):
    cached_tokens: TokenCount | None = None
    cache_write_tokens: TokenCount | None = None
    reasoning_tokens: TokenCount | None = None


class ReportedUsage(msgspec.Struct, gc=False):
    """The usage of an answer under the field names of the Responses API."""

    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    total_tokens: TokenCount | None = None
    input_tokens_details: ReportedDetails | None = None
    output_tokens_details: ReportedDetails | None = None


U = TypeVar("U", bound=ReportedUsage)


def repair_usage(reported: msgspec.Raw, to: type[U]) -> U | None:
    """Return a usage that cannot be decoded, without the values that are no numbers of tokens: 10.0 is one."""
    try:
        return msgspec.convert(_only_counts(msgspec.json.decode(reported)), to | None)
    except DECODE_ERRORS:
        return None


def _only_counts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _only_counts(each) for name, each in value.items()}
    count = int(value) if isinstance(value, float) and value.is_integer() else value
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_TOKEN_COUNT
    return count if is_count else None


_NO_INPUT_DETAILS, _NO_OUTPUT_DETAILS = InputTokensDetails(), OutputTokensDetails()


def normalize_usage(reported: ReportedUsage) -> Usage | None:
    """Return the usage, with the sum for a missing total; None where it has neither input nor output."""
    input_tokens, output_tokens, total_tokens = reported.input_tokens, reported.output_tokens, reported.total_tokens
    if input_tokens is None and output_tokens is None:
        return None
    input_tokens, output_tokens = input_tokens or 0, output_tokens or 0
    input_details, output_details = _NO_INPUT_DETAILS, _NO_OUTPUT_DETAILS
    if (details := reported.input_tokens_details) is not None:
        input_details = InputTokensDetails(
            cached_tokens=details.cached_tokens or 0, cache_write_tokens=details.cache_write_tokens or 0
        )
    if (details := reported.output_tokens_details) is not None:
        output_details = OutputTokensDetails(reasoning_tokens=details.reasoning_tokens or 0)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens if total_tokens is None else total_tokens,
        input_tokens_details=input_details,
        output_tokens_details=output_details,
    )


class ReportedLogProb(msgspec.Struct, gc=False):
    token: str = ""
    logprob: float | None = None
    bytes: tuple[int, ...] | None = None
    top_logprobs: list[ReportedLogProb] | None = None


def normalize_logprobs(reported: Iterable[ReportedLogProb]) -> tuple[LogProb, ...]:
    return tuple(
        LogProb(
            token=each.token,
            logprob=each.logprob or 0.0,
            bytes=each.bytes or (),
            top_logprobs=tuple(
                TopLogProb(token=top.token, logprob=top.logprob or 0.0, bytes=top.bytes or ())
                for top in each.top_logprobs or ()
            ),
        )
        for each in reported
    )
