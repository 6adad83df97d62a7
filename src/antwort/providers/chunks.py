"""A backend's chunks become deltas: every quirk of Chat Completions servers is settled here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from antwort.api.responses import Usage
from antwort.errors import BackendError
from antwort.providers.base import Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.calls import CallPiece, Calls, Function
from antwort.providers.errors import NOBODY, Asked, error_in
from antwort.providers.plain import read_plain
from antwort.providers.reading import (
    OUTPUT_BYTES,
    UNREADABLE,
    BodyReader,
    EventReader,
    Tally,
    broken_off,
    read_body,
    size_of,
)
from antwort.providers.tokens import TokenDetails, TokenProb, Told, log_probs, usage_of

_NOTHING = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")


# ---- what backends send: any field may be missing or null, unknown ones are passed over ----


class _Text(msgspec.Struct, gc=False):
    text: str | None = None


class _Part(_Text, gc=False):
    thinking: str | list[_Text] | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: Any = None
    """How calls came before there were several. What is no object says nothing."""


class _LogProbs(msgspec.Struct, gc=False):
    content: list[TokenProb] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: _LogProbs | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _NOTHING
    error: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Told = None
    completion_tokens: Told = None
    total_tokens: Told = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


# ---- readers ----


class ChunkReader(EventReader):
    """Reads a stream of chunks. `Finished` comes at `[DONE]` or at the end, after a usage that trails behind."""

    __slots__ = ("_turn",)

    def __init__(self, asked: Asked = NOBODY, most: int = OUTPUT_BYTES) -> None:
        super().__init__(asked, most)
        self._turn = _Turn(self._tally)

    def _read(self, payload: bytes, out: list[Delta]) -> None:
        if payload.startswith(b"[DONE]"):
            self._turn.finish = self._turn.finish or "stop"  # it says that it is done, if not why
            self._end(out)
            return
        chunk = _decode_chunk(payload)
        if (chunk.error is not None or chunk.choices is None) and (error := error_in(payload, self._asked)):
            self._fail(error)
            return
        self._turn.read(chunk, out)
        if self._turn.finish == "abort":
            self._fail(_aborted())

    def _end(self, out: list[Delta]) -> None:
        if not self._turn.finish:
            self._fail(broken_off())
            return
        self._turn.end(out)
        self.ended = True


class WholeReader(BodyReader):
    def _read(self, body: bytes) -> list[Delta]:
        return read_whole(body, self._asked)


def read_whole(body: bytes, asked: Asked = NOBODY) -> list[Delta]:
    """The deltas of an answer that was not streamed, `Finished` last. An error object under a 200 is an error."""
    return read_plain(body) or read_any(body, asked)


def read_any(body: bytes, asked: Asked = NOBODY) -> list[Delta]:
    """The same, whatever of it is missing, null, in parts or beside the point."""
    answer, body = read_body(_decode_chunk, body)
    if (answer.error is not None or answer.choices is None) and (error := error_in(body, asked)):
        raise error
    turn, out = _Turn(Tally()), list[Delta]()
    turn.read(answer, out)
    if not answer.choices:
        raise BackendError("The backend sent an answer without a choice.")
    if turn.finish == "abort":
        raise _aborted()
    turn.finish = turn.finish or "stop"  # the message came whole, so a backend that gives no reason was done
    turn.end(out)
    return out


def _aborted() -> BackendError:
    return BackendError("The backend aborted the inference.")


# ---- one turn, from chunk to chunk ----


_FULL = frozenset({"model_context_window_exceeded"})
"""How some say that an answer has filled the context."""


class _Turn:
    """What is known of the answer so far: why it ended, the last usage that could be read, and the calls."""

    __slots__ = ("_calls", "_is_legacy", "_tally", "_usage", "finish")

    def __init__(self, tally: Tally) -> None:
        self.finish = ""
        self._tally = tally
        self._usage: Usage | None = None
        self._calls = Calls(tally)
        self._is_legacy = False

    def read(self, chunk: _Chunk, out: list[Delta]) -> None:
        for choice in chunk.choices or ():
            if choice.index:  # one answer was asked for
                continue
            message = choice.message if choice.delta is None else choice.delta
            if message is not None:
                reasoning, content, refusal = (
                    message.reasoning_content or message.reasoning,
                    message.content,
                    message.refusal,
                )
                if self._calls.named is not None and (content or reasoning or refusal):
                    self._calls.show_named(out)
                if reasoning:
                    self._tally.size += size_of(reasoning)
                    out.append(ReasoningDelta(reasoning))
                if refusal:
                    self._tally.size += size_of(refusal)
                    out.append(RefusalDelta(refusal))
                if isinstance(content, list):
                    content = self._read_parts(content, out)
                if content:
                    probs = choice.logprobs
                    out.append(
                        TextDelta(content) if probs is None else TextDelta(content, log_probs(probs.content or ()))
                    )
                if message.tool_calls:
                    read_calls = self._calls.read_whole if choice.delta is None else self._calls.read
                    read_calls(message.tool_calls, out)
                elif message.function_call is not None:
                    self._read_legacy(message.function_call, out)
            if choice.finish_reason:
                self.finish = "length" if choice.finish_reason in _FULL else choice.finish_reason
        if chunk.usage is not _NOTHING and chunk.usage != _NULL and (usage := read_usage(chunk.usage)) is not None:
            self._usage = usage

    def end(self, out: list[Delta]) -> None:
        self._calls.end(out)
        out.append(Finished(self.finish, self._usage))

    def _read_legacy(self, told: Any, out: list[Delta]) -> None:
        """There is one of it. Some send it beside `tool_calls`, which says the same."""
        if isinstance(told, dict) and (self._is_legacy or self._calls.is_empty):
            self._is_legacy = True
            name = told.get("name")
            function = Function(name if isinstance(name, str) else None, told.get("arguments"))
            self._calls.read([CallPiece(0, None, function)], out)

    def _read_parts(self, parts: list[_Part], out: list[Delta]) -> str:
        """The text of content that comes in parts; thoughts among them are reasoning, other kinds are passed over."""
        for part in parts:
            if thought := _joined(part.thinking) if isinstance(part.thinking, list) else part.thinking:
                self._tally.size += size_of(thought)
                out.append(ReasoningDelta(thought))
        return _joined(parts)


def _joined(texts: Sequence[_Text]) -> str:
    return "".join(each.text for each in texts if each.text)


def read_usage(told: msgspec.Raw) -> Usage | None:
    """None when nothing usable was told: a cost nobody can read is no reason to fail an answer."""
    try:
        usage = _decode_usage(told)
    except UNREADABLE:
        return None
    return usage_of(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        usage.prompt_tokens_details,
        usage.completion_tokens_details,
    )
