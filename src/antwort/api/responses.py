"""The response and its parts. All keys of the standard are always present."""

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


_NONE_READ, _NONE_WRITTEN = InputTokensDetails(), OutputTokensDetails()


class Usage(Wire):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    input_tokens_details: InputTokensDetails = _NONE_READ
    output_tokens_details: OutputTokensDetails = _NONE_WRITTEN

    def __add__(self, other: Usage) -> Usage:
        read, written = other.input_tokens_details, other.output_tokens_details
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            input_tokens_details=self.input_tokens_details if read == _NONE_READ else self._all_read(read),
            output_tokens_details=self.output_tokens_details
            if written == _NONE_WRITTEN
            else self._all_written(written),
        )

    def _all_read(self, more: InputTokensDetails) -> InputTokensDetails:
        before = self.input_tokens_details
        return InputTokensDetails(
            cached_tokens=before.cached_tokens + more.cached_tokens,
            cache_write_tokens=before.cache_write_tokens + more.cache_write_tokens,
        )

    def _all_written(self, more: OutputTokensDetails) -> OutputTokensDetails:
        return OutputTokensDetails(reasoning_tokens=self.output_tokens_details.reasoning_tokens + more.reasoning_tokens)


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
    """Defaults are the values the standard asks to be echoed for what a request left open."""

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
    """OpenAI's, not the standard's: there only where there is one."""
    user: str | UnsetType = UNSET
    """The same."""
    max_turns: int | UnsetType = UNSET
    """Ours, as the next two: there only where the request has set it."""
    deadline: float | UnsetType = UNSET
    token_budget: int | UnsetType = UNSET

    @property
    def output_text(self) -> str:
        """What its messages say, as one text."""
        messages = (item for item in self.output if isinstance(item, Message))
        return "".join(part.text for item in messages for part in item.content if isinstance(part, OutputText))


class CompactedResponse(Wire, kw_only=True):
    """A compacted conversation. A client that continues it begins its input with the output."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: tuple[OutputItem, ...]
    """The latest turns word for word, and last the item that stands for all that was said, those turns too."""
    usage: Usage


class Model(Wire):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "antwort"
    context_length: int | UnsetType = UNSET
    """How many tokens a request and its answer may have together, where that is known. Not in the standard."""
