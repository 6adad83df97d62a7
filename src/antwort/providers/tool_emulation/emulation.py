"""Decide how a backend is asked for tool calls, and turn its answers back into calls. No I/O.

A request with tools is sent without them: the prompt describes the tools, and a JSON schema restricts the answer to
calls of them, or to text where that is allowed. The parser turns the answer into the deltas that a model with native
tool calls would send.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, Plain, replace
from antwort.errors import AntwortError, RequestError
from antwort.notes import note
from antwort.providers.base import (
    CUT,
    CallDelta,
    Capabilities,
    ChatRequest,
    Delta,
    Finished,
    Provider,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antwort.providers.capabilities import adapt
from antwort.providers.errors import refuses_schemas, refuses_tools
from antwort.providers.fleet import SingleBackend
from antwort.providers.models import MAX_TRACKED_MODELS, ModelCache
from antwort.providers.tool_emulation.answer_schema import response_format
from antwort.providers.tool_emulation.parser import EmulatedAnswerParser
from antwort.providers.tool_emulation.prompt import rewrite_messages
from antwort.providers.tool_emulation.tool_choice import (
    ChoiceKind,
    allowed_names,
    answer_options,
    choice_kind,
    has_calls,
    names_allowed_tools,
)

_log = logging.getLogger("antwort.providers")

ToolCalling: TypeAlias = Literal["native", "constrained", "auto"]
Finding: TypeAlias = Literal["constrained", "neither"]
"""How to get calls from a model that does not make them natively: by constraining it, or not at all."""

MUST_CALL = frozenset({"required", "named"})
"""Kinds of choice that allow no answer without a call."""
FINDING_SECONDS = 600.0
"""For which a finding is believed: backends are reconfigured, and one request need not be like the next."""
MAX_FINDINGS = 4 * MAX_TRACKED_MODELS
"""One for each kind of choice."""


class ToolEmulation:
    """Tool calls for the models of one backend, whose own capabilities are those of `inner`. `mode` says how it is
    asked for them:

    - `native`: as it is.
    - `constrained`: without tools, as the module describes.
    - `auto`: natively first. If the backend refuses tools, or a required call does not come, the same request is sent
      again constrained. What is found out is remembered for each model and kind of choice, for ten minutes.
    """

    def __init__(
        self,
        mode: ToolCalling,
        inner: Callable[[str], Capabilities],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mode = mode
        self.inner = inner
        self._clock = clock
        self._findings = ModelCache[tuple[str, str], tuple[Finding, float]](MAX_FINDINGS)
        """What was found out about a model and a kind of choice, with the time until which it is believed."""
        self._last_inner: Capabilities | None = None
        self._capabilities = Capabilities()
        """Those that `_last_inner` leads to."""

    def capabilities(self, model: str) -> Capabilities:
        """Return the capabilities of the backend with this emulation."""
        inner = self.inner(model)
        if inner is not self._last_inner:
            self._last_inner = self._capabilities = inner
            if self.mode != "native":
                # Normalized schemas keep only plain patterns; with `auto`, the backend may be asked natively.
                is_enforced = self.mode == "constrained" or inner.grammar != "described"
                grammar: Literal["plain_pattern", "described"] = "plain_pattern" if is_enforced else "described"
                self._capabilities = replace(inner, allowed_tools=True, folds=True, grammar=grammar)
        return self._capabilities

    def rewrite(self, request: ChatRequest) -> ChatRequest:
        """Return the request that would be sent first, as far as is known now."""
        emulated = self.begin(request)
        return request if emulated is None or emulated.request is None else emulated.request

    def begin(self, request: ChatRequest) -> EmulatedInference | None:
        """Begin an inference. Return None for a request to send as it is: one that has nothing to do with tools, or
        whose native answer stands unless the backend refuses tools. Give such a refusal to `begin_after_refusal`.
        """
        is_native = self.mode == "native" or (self.mode == "auto" and not self._findings)
        if is_native and (not request.tools or request.tool_choice in _FREE_CHOICES):
            return None
        if not request.tools and not has_calls(request.messages):
            return None
        kind = choice_kind(request)
        finding = None if is_native else self._finding(request.model, kind)
        step: EmulationStep
        if self.mode == "constrained":
            step = "constrained"
        elif self.mode == "native" or finding == "neither":
            step = "native"
        elif finding == "constrained":
            step = "constrained_first" if kind in MUST_CALL else "constrained"
        else:
            step = "native_first"
        is_plain = step in _NATIVE_STEPS and kind not in MUST_CALL and not isinstance(request.tool_choice, dict)
        return None if is_plain else EmulatedInference(self, request, kind, step)

    def begin_after_refusal(self, request: ChatRequest, error: AntwortError) -> EmulatedInference | None:
        """Begin an inference again that the backend has answered with an error. Return None where the error stands."""
        if self.mode != "auto" or not refuses_tools(error) or not (request.tools or has_calls(request.messages)):
            return None
        kind = choice_kind(request)
        if self._finding(request.model, kind) == "neither":
            return None
        return EmulatedInference(self, request, kind, "constrained_after_refusal", error)

    def record(self, model: str, kind: ChoiceKind, finding: Finding, reason: str = "") -> None:
        """Remember for ten minutes what an inference has found out, and log that calls are constrained from now on."""
        if self._finding(model, kind) == finding:
            return
        self._findings.put((model, kind), (finding, self._clock() + FINDING_SECONDS))
        if finding == "constrained":
            note(_log, logging.INFO, f"tool calls are constrained for ten minutes: {reason}", model=model, choice=kind)

    def _finding(self, model: str, kind: ChoiceKind) -> Finding | None:
        """Return what was found out. A model whose calls are constrained for one kind of choice does not understand
        past calls natively either, which is all that matters for `none`.
        """
        kinds: tuple[ChoiceKind, ...] = ("auto", "required", "named", "none") if kind == "none" else (kind,)
        known = (self._findings.get((model, each)) for each in kinds)
        found = [finding for finding, until in filter(None, known) if self._clock() < until]
        if kind == "none":
            return "constrained" if "constrained" in found else None
        return found[0] if found else None


class Constrained(SingleBackend):
    """A provider with tool calls around one without, or with `auto` around one that may have them."""

    def __init__(
        self, provider: Provider, mode: ToolCalling = "auto", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(provider, emulation=ToolEmulation(mode, provider.capabilities, clock=clock), clock=clock)


# ---- one inference ----


EmulationStep: TypeAlias = Literal[
    "native",
    "native_first",
    "native_after_miss",
    "constrained",
    "constrained_first",
    "constrained_after_refusal",
    "constrained_after_miss",
]
"""What the backend is asked, and what may follow:

- `native`, `constrained`: this answer stands.
- `native_first`: if the backend refuses tools, `constrained_after_refusal`, where the first refusal stands if it
  refuses that too; if a required call does not come, `constrained_after_miss`.
- `constrained_after_miss`: if the call does not come now either, the first answer stands.
- `constrained_first`: for a required call, as that has worked before. If it does not come, `native_after_miss`, whose
  answer stands unless the backend refuses tools.
"""
_FREE_CHOICES = (UNSET, "auto", "none")
"""The values of `tool_choice` that neither require a call nor name tools."""
_NATIVE_STEPS = frozenset({"native", "native_first", "native_after_miss"})
_BUFFERED_STEPS = frozenset({"native_first", "constrained_first", "constrained_after_miss"})
"""Steps whose answer is buffered until its call if the request requires one."""


class EmulatedInference:
    """One inference in one or more requests to a backend.

    As long as there is a `request`: send it, give each batch of its answer to `feed`, and call `finish` at its end.
    What it finds out, it tells its `ToolEmulation`.
    """

    __slots__ = (
        "_buffer",
        "_emulation",
        "_first_answer",
        "_first_end",
        "_has_begun",
        "_kind",
        "_original",
        "_parser",
        "_refusal",
        "_step",
        "request",
    )

    def __init__(
        self,
        emulation: ToolEmulation,
        request: ChatRequest,
        kind: ChoiceKind,
        step: EmulationStep,
        refusal: AntwortError | None = None,
    ) -> None:
        self._emulation, self._original, self._kind = emulation, request, kind
        self._refusal = refusal
        self._first_answer: list[Delta] = []
        """An answer without the required call."""
        self._first_end: Finished | None = None
        self._ask(step)

    def _ask(self, step: EmulationStep) -> None:
        self._step = step
        self._has_begun = False
        """Whether anything of the answer to this request has gone out."""
        self.request: ChatRequest | None
        """What to send to the backend next; None: the inference is over."""
        self._parser: EmulatedAnswerParser | None = None
        is_native = step in _NATIVE_STEPS
        if is_native:
            self.request = native_request(self._original, self._emulation.inner)
        else:
            self.request, self._parser = constrained_request(self._original)
        is_buffered = self._kind in MUST_CALL and step in _BUFFERED_STEPS
        self._buffer = CallBuffer(allowed_names(self._original), is_native=is_native) if is_buffered else None
        """Until the required call has come."""

    def feed(self, batch: list[Delta]) -> list[Delta]:
        """Take a batch of the backend's answer, and return what may go out now."""
        if self._parser is not None:
            batch = self._parser.feed(batch)
        if self._buffer is not None:
            batch = self._buffer.feed(batch)
            if self._buffer.is_released:
                self._buffer = None
        if batch and not self._has_begun:
            self._has_begun = True
            if self._step == "constrained_after_refusal":
                self._find("constrained", "the backend refuses tools")
            elif self._step == "constrained_after_miss" and not _is_cut(self._first_end):
                self._find("constrained", "the call that was asked for did not come")
        return batch if self._first_end is None else add_usage(batch, self._first_end.usage)

    def finish(self, error: AntwortError | None = None) -> list[Delta]:
        """End the backend's answer, or its failure, and return what goes out now. Raises the error that stands."""
        self.request = None
        is_refused = error is not None and not self._has_begun and refuses_tools(error)
        match self._step:
            case "native_first" if is_refused:
                self._refusal = error
                self._ask("constrained_after_refusal")
            case "native_first" | "constrained_first" if error is None and self._buffer is not None:
                self._first_answer = self._buffer.held
                self._first_end = _end_of(self._first_answer)
                self._ask("constrained_after_miss" if self._step == "native_first" else "native_after_miss")
            case "native_after_miss" if is_refused:
                return self._first_answer
            case "constrained_after_refusal" if isinstance(error, RequestError) and not self._has_begun:
                assert self._refusal is not None
                if refuses_schemas(error):
                    self._find("neither")
                raise self._refusal from error
            case "constrained_after_miss" if self._buffer is not None:
                return self._without_call(self._buffer.held, error)
            case _:
                if error is not None:
                    raise error
        return []

    def _without_call(self, second: Sequence[Delta], error: AntwortError | None) -> list[Delta]:
        """Return the first answer, with the cost of both, as the call has not come in the `second` one either."""
        end = _end_of(second)
        has_text = any(isinstance(delta, TextDelta) for delta in second)
        is_unenforced = has_text and end is not None and not _is_cut(end) and not _is_cut(self._first_end)
        if is_unenforced or (error is not None and refuses_schemas(error)):
            self._find("neither")  # the backend refuses or ignores the schema that allows only calls
        return add_usage(self._first_answer, end.usage if end else None)

    def _find(self, finding: Finding, reason: str = "") -> None:
        self._emulation.record(self._original.model, self._kind, finding, reason)


class CallBuffer:
    """Buffer an answer until its first call. Reasoning of a native answer passes at once: it stands in any case.

    `allowed`: the names of the tools that may be called; None: any. A refusal releases a native answer, too.
    """

    __slots__ = ("_allowed", "_has_call", "_is_native", "held", "is_released")

    def __init__(self, allowed: frozenset[str] | None, *, is_native: bool) -> None:
        self._allowed, self._is_native = allowed, is_native
        self._has_call = False
        self.is_released = False
        """Whether the first call is an allowed one, or the model refused: nothing is buffered any more."""
        self.held: list[Delta] = []

    def feed(self, batch: list[Delta]) -> list[Delta]:
        """Return what of the answer may go out now."""
        for delta in () if self._has_call else batch:
            if isinstance(delta, CallDelta) and delta.name:
                self._has_call = True
                self.is_released = self._allowed is None or delta.name in self._allowed
            elif self._is_native and _is_model_refusal(delta):
                self.is_released = True
            if self._has_call or self.is_released:
                break
        if self.is_released:
            return [*self.held, *batch]
        if not self._is_native:
            self.held += batch
            return []
        self.held += [delta for delta in batch if not isinstance(delta, ReasoningDelta)]
        return [delta for delta in batch if isinstance(delta, ReasoningDelta)]


def _is_model_refusal(delta: Delta) -> bool:
    return isinstance(delta, RefusalDelta) or (isinstance(delta, Finished) and delta.finish == "content_filter")


def _end_of(answer: Sequence[Delta]) -> Finished | None:
    return next((delta for delta in answer if isinstance(delta, Finished)), None)


def _is_cut(end: Finished | None) -> bool:
    """Whether a limit has cut the answer, which says nothing about the backend."""
    return end is not None and end.finish in CUT


def add_usage(batch: list[Delta], before: Usage | None) -> list[Delta]:
    """Return the batch with the usage of an earlier request added to that of its end."""
    if before is None or not isinstance(last := batch[-1] if batch else None, Finished):
        return batch
    return [*batch[:-1], Finished(last.finish, before if last.usage is None else before + last.usage, is_sum=True)]


# ---- requests ----


def native_request(request: ChatRequest, inner: Callable[[str], Capabilities]) -> ChatRequest:
    """Return the request without a list of allowed tools if the backend does not take one."""
    if not names_allowed_tools(request.tool_choice):
        return request
    capabilities = inner(request.model)
    return request if capabilities.allowed_tools else adapt(request, capabilities)


def constrained_request(request: ChatRequest) -> tuple[ChatRequest, EmulatedAnswerParser | None]:
    """Return the request without tools, and the parser of its answer. Without tools to call and calls in the messages,
    the answer is plain, and has no parser.
    """
    bare = replace(request, tools=UNSET, tool_choice=UNSET, parallel_tool_calls=UNSET)
    options = answer_options(request)
    if not options.tools and not has_calls(request.messages):
        return bare, None
    answer = _requested_schema(request)
    rewritten = replace(
        bare,
        messages=rewrite_messages(request.messages, options),
        response_format=response_format(options, answer),
        logprobs=UNSET,  # they would be those of the JSON text
        top_logprobs=UNSET,
    )
    return rewritten, EmulatedAnswerParser(is_json=answer is not None)


def _requested_schema(request: ChatRequest) -> Plain | None:
    """Return the schema that the request itself has for the answer; None: text."""
    requested = request.response_format
    if not isinstance(requested, dict) or requested.get("type") not in ("json_object", "json_schema"):
        return None
    inner = requested.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else {"type": "object", "additionalProperties": True}
