"""The response and its parts. All fields of the standard are always present."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from antwort.api.items import Message, OutputItem, OutputText
from antwort.api.status import ResponseStatus
from antwort.api.wire import UNSET, Plain, UnsetType, Wire

Metadata: TypeAlias = dict[str, str]


class InputTokensDetails(Wire):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Wire):
    reasoning_tokens: int = 0


_NO_INPUT_DETAILS, _NO_OUTPUT_DETAILS = InputTokensDetails(), OutputTokensDetails()


class Usage(Wire):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    input_tokens_details: InputTokensDetails = _NO_INPUT_DETAILS
    output_tokens_details: OutputTokensDetails = _NO_OUTPUT_DETAILS

    def __add__(self, other: Usage) -> Usage:
        read, more_read = self.input_tokens_details, other.input_tokens_details
        written, more_written = self.output_tokens_details, other.output_tokens_details
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=read.cached_tokens + more_read.cached_tokens,
                cache_write_tokens=read.cache_write_tokens + more_read.cache_write_tokens,
            ),
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=written.reasoning_tokens + more_written.reasoning_tokens
            ),
        )


class ResponseError(Wire):
    """Why a response failed. `type` is an addition: some clients reject an error without it."""

    code: str
    message: str
    type: str = "server_error"


class IncompleteDetails(Wire):
    reason: str


class ReasoningEcho(Wire):
    effort: str | None = None
    summary: str | None = None


class ConversationRef(Wire):
    """The conversation that a response is a turn of."""

    id: str


class Response(Wire, kw_only=True, weakref=True):
    """A response. Defaults are the values that the standard asks for where a request sets none."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    incomplete_details: IncompleteDetails | None = None
    model: str
    previous_response_id: str | None = None
    instructions: str | None = None
    output: tuple[OutputItem, ...] = ()
    error: ResponseError | None = None
    tools: tuple[Plain, ...] = ()
    tool_choice: str | Plain = "auto"
    truncation: str = "disabled"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    temperature: float = 1.0
    reasoning: ReasoningEcho | None = None
    usage: Usage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    store: bool = True
    background: bool = False
    service_tier: str = "default"
    metadata: Metadata = msgspec.field(default_factory=dict)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    conversation: ConversationRef | UnsetType = UNSET
    """A field of OpenAI, not of the standard. It and the next are present only if they are set."""
    user: str | UnsetType = UNSET
    max_turns: int | UnsetType = UNSET
    """An extension, as the next two. They are present only if the request has set them."""
    deadline: float | UnsetType = UNSET
    token_budget: int | UnsetType = UNSET

    @property
    def output_text(self) -> str:
        """The text of all messages in the output."""
        messages = (item for item in self.output if isinstance(item, Message))
        return "".join(part.text for item in messages for part in item.content if isinstance(part, OutputText))


class CompactedResponse(Wire, kw_only=True):
    """A compacted conversation. A client that continues it begins its input with the output."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: tuple[OutputItem, ...]
    """The latest turns unchanged, and last the item that stands for the whole conversation, including those turns."""
    usage: Usage


class Model(Wire):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "antwort"
    context_length: int | UnsetType = UNSET
    """Tokens that a request and its answer may have together, if known. An extension."""
