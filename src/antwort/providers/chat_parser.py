"""Parse the answers of Chat Completions backends, streamed or whole, into deltas. Pure.

Servers differ: any field may be missing, null or of another type, and unknown fields are ignored. A whole answer goes
through the same code as one chunk of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from antwort.api.responses import Usage
from antwort.errors import BackendCut, BackendError
from antwort.providers.answer_parser import (
    CALL_OVERHEAD_BYTES,
    DECODE_ERRORS,
    DEFAULT_OUTPUT_BYTES,
    ReportedDetails,
    ReportedLogProb,
    ReportedUsage,
    StreamParser,
    TokenCount,
    byte_size,
    decode_body,
    normalize_logprobs,
    normalize_usage,
    repair_usage,
    truncate,
)
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.errors import BROKEN_OFF, UNKNOWN_REQUEST, SentRequest, error_in, json_text

# ---- what backends send ----


class _TextPart(msgspec.Struct, gc=False):
    text: str | None = None


class _ContentPart(_TextPart, gc=False):
    thinking: str | list[_TextPart] | None = None


class _CallFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _CallPiece(msgspec.Struct, gc=False):
    """An entry of `tool_calls`: a part of a call in a chunk, a whole call in a whole answer."""

    index: int | None = None
    id: str | int | None = None
    function: _CallFunction | None = None


class _ChunkMessage(msgspec.Struct, gc=False):
    content: str | list[_ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None
    function_call: Any = None
    """The deprecated form of `tool_calls`, for one call. Values of other types than an object are ignored."""


class _ChunkLogProbs(msgspec.Struct, gc=False):
    content: list[ReportedLogProb] | None = None


class _ChunkChoice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _ChunkMessage | None = None
    message: _ChunkMessage | None = None
    finish_reason: str | None = None
    logprobs: _ChunkLogProbs | None = None


class _ChatUsage(ReportedUsage, gc=False):
    input_tokens: TokenCount | None = msgspec.field(default=None, name="prompt_tokens")
    output_tokens: TokenCount | None = msgspec.field(default=None, name="completion_tokens")
    input_tokens_details: ReportedDetails | None = msgspec.field(default=None, name="prompt_tokens_details")
    output_tokens_details: ReportedDetails | None = msgspec.field(default=None, name="completion_tokens_details")


class _Chunk(msgspec.Struct, gc=False):
    """A chunk of a stream, or a whole answer."""

    choices: list[_ChunkChoice] | None = None
    error: Any = None
    usage: _ChatUsage | None = None


class _UncheckedChunk(msgspec.Struct, gc=False):
    choices: list[_ChunkChoice] | None = None
    error: Any = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_chunk_decoder = msgspec.json.Decoder(_Chunk)
_fallback_decoder = msgspec.json.Decoder(_UncheckedChunk)


def _decode_unchecked(payload: bytes) -> _Chunk:
    """Decode a chunk whose usage cannot be read as it is, which is no reason to fail an answer."""
    chunk = _fallback_decoder.decode(payload)
    return _Chunk(chunk.choices, chunk.error, repair_usage(chunk.usage, _ChatUsage))


# ---- parsers ----


class ChatStreamParser(StreamParser):
    """Parse a stream of chunks. `Finished` comes at `[DONE]` or at the end: the usage may follow the last choice."""

    __slots__ = ("_answer",)

    def __init__(self, sent: SentRequest = UNKNOWN_REQUEST, max_bytes: int = DEFAULT_OUTPUT_BYTES) -> None:
        super().__init__(sent, max_bytes)
        self._answer = _ChatAnswer()

    def _parse_event(self, payload: bytes, out: list[Delta]) -> int:
        if payload.startswith(b"[DONE]"):
            self._answer.finish_reason = self._answer.finish_reason or "stop"
            self._end(out)
            return 0
        try:
            chunk = _chunk_decoder.decode(payload)
        except DECODE_ERRORS:
            chunk = _decode_unchecked(payload)
        if (chunk.error is not None or chunk.choices is None) and (error := error_in(payload, self._sent)):
            self._fail(error)
            return 0
        size = self._answer.feed(chunk, out)
        if self._answer.finish_reason == "abort":
            self._fail(BackendError(_ABORTED))
        return size

    def _end(self, out: list[Delta]) -> None:
        if self._answer.finish_reason:
            self._answer.finish(out)
            self.ended = True
        else:
            self._fail(BackendCut(BROKEN_OFF))


def parse_chat_body(
    body: bytes, sent: SentRequest = UNKNOWN_REQUEST, max_bytes: int = DEFAULT_OUTPUT_BYTES
) -> list[Delta]:
    """Parse a whole answer: one choice with a `message`, or an error object with status 200, which is raised."""
    try:
        chunk = _chunk_decoder.decode(body)
    except DECODE_ERRORS:
        chunk, body = decode_body(_decode_unchecked, body)
    if (chunk.error is not None or chunk.choices is None) and (error := error_in(body, sent)):
        raise error
    if not chunk.choices:
        raise BackendError("The backend sent an answer without a choice.")
    out: list[Delta] = []
    answer = _ChatAnswer()
    answer.feed(chunk, out)
    if answer.finish_reason == "abort":
        raise BackendError(_ABORTED)
    answer.finish_reason = answer.finish_reason or "stop"  # the message is complete
    answer.finish(out)
    return out if len(body) <= max_bytes else truncate(out, max_bytes)


_ABORTED = "The backend aborted the inference."
_CONTEXT_FULL = "model_context_window_exceeded"
"""The `finish_reason` of some backends for an answer that has filled the context."""


class _ChatAnswer(msgspec.Struct):
    """The state of one answer between its chunks: the finish reason, the last readable usage and the calls."""

    finish_reason: str = ""
    _usage: Usage | None = None
    _calls: _CallAssembler | None = None
    """Made for the first call."""
    _is_legacy: bool = False

    def feed(self, chunk: _Chunk, out: list[Delta]) -> int:
        """Append the deltas of a chunk, and return the bytes of its output except for `TextDelta`s."""
        size = 0
        for choice in chunk.choices or ():
            if choice.index:  # requests ask for one choice
                continue
            if (message := choice.delta or choice.message) is not None:
                content = message.content
                if self._calls is not None and (
                    content or message.reasoning_content or message.reasoning or message.refusal
                ):
                    self._calls.emit_named(out)
                if reasoning := message.reasoning_content or message.reasoning:
                    size += byte_size(reasoning)
                    out.append(ReasoningDelta(reasoning))
                if refusal := message.refusal:
                    size += byte_size(refusal)
                    out.append(RefusalDelta(refusal))
                if isinstance(content, list):
                    content, thinking_size = self._feed_parts(content, out)
                    size += thinking_size
                if content:
                    probs = choice.logprobs
                    out.append(
                        TextDelta(content)
                        if probs is None
                        else TextDelta(content, normalize_logprobs(probs.content or ()))
                    )
                if message.tool_calls:
                    self._calls = self._calls or _CallAssembler()
                    size += self._calls.feed(message.tool_calls, out, is_whole=choice.delta is None)
                elif message.function_call is not None:
                    size += self._feed_legacy_call(message.function_call, out)
            if choice.finish_reason:
                self.finish_reason = "length" if choice.finish_reason == _CONTEXT_FULL else choice.finish_reason
        if chunk.usage is not None and (usage := normalize_usage(chunk.usage)) is not None:
            self._usage = usage
        return size

    def finish(self, out: list[Delta]) -> None:
        if self._calls is not None:
            self._calls.finish(out)
        out.append(Finished(self.finish_reason, self._usage))

    def _feed_parts(self, parts: list[_ContentPart], out: list[Delta]) -> tuple[str, int]:
        """Return the text of content parts, and the bytes of the others. Thinking parts are reasoning; other types are
        ignored.
        """
        size = 0
        for part in parts:
            thinking = _join_text(part.thinking) if isinstance(part.thinking, list) else part.thinking
            if thinking:
                size += byte_size(thinking)
                out.append(ReasoningDelta(thinking))
        return _join_text(parts), size

    def _feed_legacy_call(self, call: Any, out: list[Delta]) -> int:
        """Add to the one call of `function_call`, unless the same call came in `tool_calls`."""
        if not isinstance(call, dict) or not (self._is_legacy or self._calls is None):
            return 0
        self._is_legacy = True
        self._calls = self._calls or _CallAssembler()
        name = call.get("name")
        function = _CallFunction(name if isinstance(name, str) else None, call.get("arguments"))
        return self._calls.feed([_CallPiece(0, None, function)], out, is_whole=False)


def _join_text(parts: Sequence[_TextPart]) -> str:
    return "".join([part.text for part in parts if part.text])


# ---- calls ----


class _AssembledCall:
    """A call in progress. Its first delta is emitted when its arguments begin and its name is known: a name may come
    in several pieces, and arguments may come before it.
    """

    __slots__ = ("arguments", "id", "last_name_chunk", "name", "number")

    def __init__(self, call_id: str | int | None) -> None:
        self.id = call_id
        self.name = ""
        self.last_name_chunk = 0
        """The number of the chunk with the name, or with its last piece."""
        self.number = -1
        """The call's index in the deltas, once it is emitted."""
        self.arguments: list[str] = []
        """Arguments that wait for the name."""


class _CallAssembler:
    """Assign each piece of a call to its call. Backends may leave out index or id, or give every call the index 0."""

    __slots__ = ("_by_id", "_by_index", "_calls", "_chunk_number", "_emitted", "_last", "named")

    def __init__(self) -> None:
        self._calls: list[_AssembledCall] = []
        self._by_id: dict[str | int, _AssembledCall] = {}
        self._by_index: dict[int, _AssembledCall] = {}
        self._last: _AssembledCall | None = None
        self.named: _AssembledCall | None = None
        """The call that has a name but no arguments yet."""
        self._chunk_number = self._emitted = 0

    def feed(self, pieces: list[_CallPiece], out: list[Delta], *, is_whole: bool) -> int:
        """Add the pieces of one chunk, and return their bytes; `is_whole`: each is a call of its own, whatever its
        index and id are.
        """
        self._chunk_number += 1
        size = 0
        for position, piece in enumerate(pieces):
            function = piece.function
            name, arguments = ("", "") if function is None else (function.name or "", json_text(function.arguments))
            if is_whole:
                piece.index = position
            known = len(self._calls)
            size += self._add(self._call_of(piece, name, out), name, arguments, out)
            size += CALL_OVERHEAD_BYTES * (len(self._calls) - known)
        return size

    def emit_named(self, out: list[Delta]) -> None:
        """Emit the call that has only a name, because something else begins."""
        if (call := self.named) is not None:
            self._emit(call, out)

    def finish(self, out: list[Delta]) -> None:
        """Emit the remaining calls. A call without a name is emitted, too, so that the model gets an error for it."""
        self.emit_named(out)
        for call in self._calls:
            if call.number < 0 and call.arguments:
                self._emit(call, out)

    def _add(self, call: _AssembledCall, name: str, arguments: str, out: list[Delta]) -> int:
        """Add a piece to its call, and return its bytes."""
        size = byte_size(arguments)
        if call.number >= 0:
            if arguments:
                out.append(CallDelta(call.number, "", arguments))
            return size
        if name and name != call.name:  # some backends repeat the whole name with every piece
            call.name += name
            call.last_name_chunk = self._chunk_number
            size += byte_size(name)
        if arguments:
            call.arguments.append(arguments)
        if call.name:
            self.named = call
            if call.arguments:
                self._emit(call, out)
        return size

    def _emit(self, call: _AssembledCall, out: list[Delta]) -> None:
        if call is self.named:
            self.named = None
        call.number, self._emitted = self._emitted, self._emitted + 1
        out.append(CallDelta(call.number, call.name, "".join(call.arguments)))
        call.arguments = []

    def _call_of(self, piece: _CallPiece, name: str, out: list[Delta]) -> _AssembledCall:
        """Return the call of a piece: by its index; without one by its id, else a new call for a name, else the
        last call.
        """
        call: _AssembledCall | None
        if piece.index is not None:
            call = self._by_index.get(piece.index)
            if call is not None and name and call.name and self._is_another(call, piece.id, name):
                call = None
        elif piece.id and piece.id in self._by_id:
            call = self._by_id[piece.id]
        else:
            call = None if name else self._last
        if call is None:
            self.emit_named(out)
            call = _AssembledCall(piece.id)
            self._calls.append(call)
        if piece.index is not None:
            self._by_index[piece.index] = call
        call.id = call.id or piece.id
        if call.id:
            self._by_id.setdefault(call.id, call)
        self._last = call
        return call

    def _is_another(self, known: _AssembledCall, call_id: str | int | None, name: str) -> bool:
        """Return whether a second name at a known index begins a new call: it comes with another id, or with none.

        A name without an id in a later chunk, before the arguments begin, continues the first name.
        """
        if call_id:
            return call_id != known.id
        is_continued = known is self.named and known.last_name_chunk < self._chunk_number
        return name != known.name and not is_continued
