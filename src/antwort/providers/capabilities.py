"""What backends take: compare a request with it, combine that of several, and adapt a request to one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.wire import UNSET, UnsetType, replace
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest


def accepts(request: ChatRequest, capabilities: Capabilities) -> bool:
    """Whether a backend with these capabilities can read every part of the request."""
    if capabilities.vision and capabilities.files:
        return True
    refused = _FILES if capabilities.vision else _PICTURES if capabilities.files else _FILES | _PICTURES
    parts = (message.content for message in request.messages if isinstance(message.content, list))
    return not any(part.get("type") in refused for content in parts for part in content)


def is_too_long(request: ChatRequest, capabilities: Capabilities) -> bool:
    """Whether the request has certainly more tokens than the context."""
    length = capabilities.context_length
    return length is not None and sum(map(_characters, request.messages)) > length * _MOST_CHARACTERS_PER_TOKEN


def _characters(message: ChatMessage) -> int:
    content = message.content
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text") or "") for part in content or ()) if isinstance(content, list) else 0


_MOST_CHARACTERS_PER_TOKEN = 16
"""On the average of a text; no tokenizer comes near it."""
_PICTURES = frozenset({"image_url", "video_url"})
_FILES = frozenset({"file"})


def widest(several: Sequence[Capabilities]) -> Capabilities:
    """Return the union of their capabilities, so that a request translated for it loses nothing at any of them.

    Grammars are the other way round: only the form that all of them follow is used.
    """
    first = several[0]
    if all(each == first for each in several):
        return first
    lengths = [each.context_length for each in several if each.context_length]
    return Capabilities(
        vision=any(each.vision for each in several),
        files=any(each.files for each in several),
        reasoning_field=next((each.reasoning_field for each in several if each.reasoning_field), None),
        developer_role=any(each.developer_role for each in several),
        allowed_tools=any(each.allowed_tools for each in several),
        stream_usage=any(each.stream_usage for each in several),
        max_tokens_field=first.max_tokens_field,
        prompt_cache_key=any(each.prompt_cache_key for each in several),
        verbosity=any(each.verbosity for each in several),
        folds=any(each.folds for each in several),
        grammar=first.grammar if all(each.grammar == first.grammar for each in several) else "described",
        context_length=max(lengths, default=None),
        more_may_fit=0 < len(lengths) < len(several) or any(each.more_may_fit for each in several),
    )


def adapt(request: ChatRequest, capabilities: Capabilities) -> ChatRequest:
    """Return the request with the field names of a backend with these capabilities, less what it does not take."""
    limit = request.max_tokens if request.max_tokens is not UNSET else request.max_completion_tokens
    is_whole = capabilities.max_tokens_field == "max_completion_tokens"
    return replace(
        request,
        messages=[_message(message, capabilities) for message in request.messages],
        max_tokens=UNSET if is_whole else limit,
        max_completion_tokens=limit if is_whole else UNSET,
        tool_choice=request.tool_choice if capabilities.allowed_tools else _plain_choice(request.tool_choice),
        prompt_cache_key=request.prompt_cache_key if capabilities.prompt_cache_key else UNSET,
        verbosity=request.verbosity if capabilities.verbosity else UNSET,
    )


def _message(message: ChatMessage, capabilities: Capabilities) -> ChatMessage:
    reasoning = message.reasoning_content if message.reasoning_content is not UNSET else message.reasoning
    field = capabilities.reasoning_field
    is_developer = message.role == "developer" and not capabilities.developer_role
    if reasoning is UNSET and not is_developer:
        return message
    return replace(
        message,
        role="system" if is_developer else message.role,
        reasoning_content=reasoning if field == "reasoning_content" else UNSET,
        reasoning=reasoning if field == "reasoning" else UNSET,
    )


def _plain_choice(choice: str | dict[str, object] | UnsetType) -> str | dict[str, object] | UnsetType:
    """Leave out the list of allowed tools. The loop enforces it on the calls in any case."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        mode = allowed.get("mode") if isinstance(allowed, dict) else None
        return "required" if mode == "required" else UNSET
    return choice
