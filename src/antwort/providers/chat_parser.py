"""Parse the answers of Chat Completions backends, streamed or whole, into deltas. Pure.

Servers differ: any field may be missing, null or of another type, and unknown fields are ignored. A whole answer is
parsed like the only chunk of a stream.
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
    AnswerParser,
    ReportedDetails,
    ReportedLogProb,
    ReportedUsage,
    TokenCount,
    byte_size,
    delta_size,
    normalize_logprobs,
    normalize_usage,
    repair_usage,
)
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.errors import BROKEN_OFF, error_in, json_text

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


_ABORTED = "The backend aborted the inference."
_CONTEXT_FULL = "model_context_window_exceeded"
"""The `finish_reason` of some backends for an answer that has filled the context."""


class ChatParser(AnswerParser):
    """Parse chunks. `Finished` comes at `[DONE]` or at the end: the usage may follow the last choice."""

    finish_reason: str = ""
    _usage: Usage | None = None
    """The last one that can be read."""
    _calls: _CallAssembler | None = None
    """Made for the first call."""
    _is_legacy: bool = False

    def _parse(self, payload: bytes, out: list[Delta]) -> None:
        if payload.startswith(b"[DONE]"):
            self.finish_reason = self.finish_reason or "stop"
            self._end(out)
            return
        try:
            chunk = _chunk_decoder.decode(payload)
        except DECODE_ERRORS:
            chunk = _decode_unchecked(payload)
        if (chunk.error is not None or chunk.choices is None) and (error := error_in(payload, self.sent)):
            self._fail(error)
            return
        if self.is_whole and not chunk.choices:
            self._fail(BackendError("The backend sent an answer without a choice."))
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
                    self._size += byte_size(reasoning)
                    out.append(ReasoningDelta(reasoning))
                if refusal := message.refusal:
                    self._size += byte_size(refusal)
                    out.append(RefusalDelta(refusal))
                if isinstance(content, list):
                    content = self._parse_parts(content, out)
                if content:
                    self._size += len(content) if content.isascii() else len(content.encode())
                    probs = choice.logprobs
                    out.append(
                        TextDelta(content)
                        if probs is None
                        else TextDelta(content, normalize_logprobs(probs.content or ()))
                    )
                if message.tool_calls:
                    if self.is_whole and self._calls is None:
                        self._parse_whole_calls(message.tool_calls, out)
                    else:
                        self._calls = self._calls or _CallAssembler()
                        self._size += self._calls.feed(message.tool_calls, out, are_whole=choice.delta is None)
                elif message.function_call is not None:
                    self._parse_legacy_call(message.function_call, out)
            if reason := choice.finish_reason:
                self.finish_reason = "length" if reason == _CONTEXT_FULL else reason
                if reason == "abort":
                    self._fail(BackendError(_ABORTED))
        if chunk.usage is not None and (usage := normalize_usage(chunk.usage)) is not None:
            self._usage = usage

    def _end(self, out: list[Delta]) -> None:
        if not self.finish_reason and not self.is_whole:
            self._fail(BackendCut(BROKEN_OFF))
            return
        if self._calls is not None:
            self._calls.finish(out)
        out.append(Finished(self.finish_reason or "stop", self._usage))
        self.ended = True

    def _parse_whole_calls(self, pieces: list[_CallPiece], out: list[Delta]) -> None:
        """Each piece of a whole answer is a call of its own, whatever its index and id are. Calls without a name come
        last.
        """
        functions = [
            each.function for each in pieces if each.function and (each.function.name or each.function.arguments)
        ]
        if len(functions) > 1:
            functions.sort(key=lambda each: not each.name)
        for number, function in enumerate(functions):
            delta = CallDelta(number, function.name or "", json_text(function.arguments))
            self._size += delta_size(delta)
            out.append(delta)

    def _parse_parts(self, parts: list[_ContentPart], out: list[Delta]) -> str:
        """Return the text of content parts. Thinking parts are reasoning; other types are ignored."""
        for part in parts:
            thinking = _join_text(part.thinking) if isinstance(part.thinking, list) else part.thinking
            if thinking:
                self._size += byte_size(thinking)
                out.append(ReasoningDelta(thinking))
        return _join_text(parts)

    def _parse_legacy_call(self, call: Any, out: list[Delta]) -> None:
        """Add to the one call of `function_call`, unless the same call came in `tool_calls`."""
        if not isinstance(call, dict) or not (self._is_legacy or self._calls is None):
            return
        self._is_legacy = True
        self._calls = self._calls or _CallAssembler()
        name = call.get("name")
        function = _CallFunction(name if isinstance(name, str) else None, call.get("arguments"))
        self._size += self._calls.feed([_CallPiece(0, None, function)], out, are_whole=False)


def _join_text(parts: Sequence[_TextPart]) -> str:
    return "".join([part.text for part in parts if part.text])


# ---- calls ----


class _AssembledCall(msgspec.Struct, eq=False):
    """A call in progress. Its first delta is emitted when its arguments begin and its name is known: a name may come
    in several pieces, and arguments may come before it.
    """

    id: str | int | None
    name: str = ""
    last_name_chunk: int = 0
    """The number of the chunk with the name, or with its last piece."""
    number: int = -1
    """The call's index in the deltas, once it is emitted."""
    arguments: list[str] = []
    """Arguments that wait for the name."""


class _CallAssembler(msgspec.Struct, eq=False):
    """Assign each piece of a call to its call. Backends may leave out index or id, or give every call the index 0."""

    _calls: list[_AssembledCall] = []
    _by_id: dict[str | int, _AssembledCall] = {}
    _by_index: dict[int, _AssembledCall] = {}
    _last: _AssembledCall | None = None
    _named: _AssembledCall | None = None
    """The call that has a name but no arguments yet."""
    _chunk_number: int = 0
    _emitted: int = 0

    def feed(self, pieces: list[_CallPiece], out: list[Delta], *, are_whole: bool) -> int:
        """Add the pieces of one chunk, and return their bytes; `are_whole`: each is a call of its own, whatever its
        index and id are.
        """
        self._chunk_number += 1
        size = 0
        for position, piece in enumerate(pieces):
            function = piece.function
            name, arguments = ("", "") if function is None else (function.name or "", json_text(function.arguments))
            if are_whole:
                piece.index = position
            known = len(self._calls)
            size += self._add(self._call_of(piece, name, out), name, arguments, out)
            size += CALL_OVERHEAD_BYTES * (len(self._calls) - known)
        return size

    def emit_named(self, out: list[Delta]) -> None:
        """Emit the call that has only a name, because something else begins."""
        if (call := self._named) is not None:
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
            self._named = call
            if call.arguments:
                self._emit(call, out)
        return size

    def _emit(self, call: _AssembledCall, out: list[Delta]) -> None:
        if call is self._named:
            self._named = None
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
            if self._named is not None:
                self._emit(self._named, out)
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
        is_continued = known is self._named and known.last_name_chunk < self._chunk_number
        return name != known.name and not is_continued
