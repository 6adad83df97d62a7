"""The contract of a provider: a chat request goes in, batches of deltas come out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from antwort.api.items import LogProb
from antwort.api.responses import Model, Usage
from antwort.api.wire import UNSET, UnsetType, Wire

# ---- deltas: our pieces of a turn ----


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    text: str
    logprobs: tuple[LogProb, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class RefusalDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of call number `index`. `name` comes once, whole, on the first piece; backends' own ids stay there."""

    index: int
    name: str = ""
    arguments: str = ""


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The last delta of an inference: why it ended, and what it cost if the backend says so."""

    finish: str
    usage: Usage | None = None
    is_sum: bool = False
    """Whether that is the cost of more than the one request."""


Delta: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta | CallDelta | Finished

MAX_OUTPUT_BYTES = "max_output_bytes"
"""The finish of an answer that was cut because it is longer than it may be."""
MAX_TURN_CALLS = "max_turn_calls"
"""The finish of one that was cut because it calls more than it may."""
CUT = frozenset({"length", "content_filter", MAX_OUTPUT_BYTES, MAX_TURN_CALLS})
"""Finishes that say the answer was broken off: what was being written is incomplete."""


# ---- the request, in Chat Completions' words; unset fields are not sent ----


class ChatFunction(Wire):
    name: str
    arguments: str


class ChatCall(Wire):
    id: str
    function: ChatFunction
    type: Literal["function"] = "function"


class ChatMessage(Wire):
    role: str
    content: str | list[dict[str, Any]] | None | UnsetType = UNSET
    tool_calls: list[ChatCall] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET


class ChatToolFunction(Wire):
    name: str
    description: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class ChatTool(Wire):
    function: ChatToolFunction
    type: Literal["function"] = "function"


class ChatRequest(Wire):
    """One inference. There is no `n`: one answer is asked for, and only the first choice is read."""

    model: str
    messages: list[ChatMessage]
    stream: bool | UnsetType = UNSET
    stream_options: dict[str, Any] | UnsetType = UNSET
    tools: list[ChatTool] | UnsetType = UNSET
    tool_choice: str | dict[str, Any] | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    max_completion_tokens: int | UnsetType = UNSET
    reasoning_effort: str | UnsetType = UNSET
    response_format: dict[str, Any] | UnsetType = UNSET
    logprobs: bool | UnsetType = UNSET
    top_logprobs: int | UnsetType = UNSET
    prompt_cache_key: str | UnsetType = UNSET
    verbosity: str | UnsetType = UNSET
    user: str | UnsetType = UNSET


class Capabilities(Wire):
    """What a backend takes. The defaults suit vLLM, llama.cpp, SGLang and Ollama."""

    vision: bool = True
    """It takes images. Off, a request that brings some is refused."""
    files: bool = False
    """It takes files."""
    reasoning_field: Literal["reasoning_content", "reasoning"] | None = "reasoning_content"
    """Where a replayed assistant message carries its reasoning; None: it is left out."""
    developer_role: bool = False
    """It takes messages of the role `developer`; off, they are sent as `system`."""
    allowed_tools: bool = False
    """It takes `tool_choice` of the type `allowed_tools`."""
    stream_usage: bool = True
    """It takes `stream_options: {include_usage: true}`."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the limit of an answer's length is called there."""
    prompt_cache_key: bool = False
    """It takes `prompt_cache_key`."""
    verbosity: bool = False
    """It takes `verbosity`."""
    folds: bool = False
    """It may write the descriptions of tools anew, on one line each."""
    grammar: Literal["described", "plain_pattern", "pattern"] = "described"
    """How it is held to the grammar of a free-form tool: in words, or by a `pattern` in the schema of the tool's
    parameters, which it decodes by. With `plain_pattern` it takes only those that every decoder understands."""
    context_length: int | None = None
    """How many tokens a request and its answer may have together; None: unknown. Of several backends behind one
    model, the largest that is known counts: what is too long for one of them goes on to another."""
    more_may_fit: bool = False
    """Whether one of several backends may take more than that, because its context length is unknown."""


class OtherName(Model):
    """A name that a model goes by besides its own: an alias, or a route. It is no further model."""


class Provider(Protocol):
    def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        """Run one inference. The first batch comes as soon as the backend has answered with its headers (it may be
        empty); each later batch holds what one read brought; the last delta of all is `Finished`.

        Raises an `AntwortError`, never a foreign exception; an answer that breaks off is a `BackendCut`. Closing the
        generator stops the backend.
        """
        ...

    async def models(self) -> Sequence[Model]: ...

    def capabilities(self, model: str) -> Capabilities: ...

    async def check(self) -> None:
        """Raise `BackendUnavailable` unless the backend can be reached."""
        ...

    async def close(self) -> None: ...


class InferenceRecord(msgspec.Struct, frozen=True, gc=False):
    """One request to a backend and how it ended, for metrics."""

    backend: str
    model: str
    seconds: float
    first_delta_seconds: float | None
    """Until the first delta of a stream; None: there was none, or it was no stream."""
    error: str
    """The code of its error, or `cancelled`; empty: it came to its end."""
    usage: Usage | None


OnInference: TypeAlias = Callable[[InferenceRecord], None]
"""A hook that is called after each request to a backend."""


ATTACHMENT_TOKENS = 1024
"""What an image, a file or a video counts for in an estimate. Most models use a few hundred tokens for an image, and
some thousands for a large one."""


@runtime_checkable
class TokenCounter(Protocol):
    """A provider that can count the tokens of a request with the backend's own tokenizer."""

    async def count(self, request: ChatRequest) -> int | None:
        """Return the number of tokens, with those of the chat template, and `ATTACHMENT_TOKENS` for each part that is
        no text; None where the backend cannot count, or does not answer within about two seconds. Raises nothing.
        """
        ...


async def count_at(provider: Provider, request: ChatRequest) -> int | None:
    """Return what the provider counts; None if it cannot count."""
    return await provider.count(request) if isinstance(provider, TokenCounter) else None
