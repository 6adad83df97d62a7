"""A request that was written for one backend, as another one takes it. Pure."""

from __future__ import annotations

from antwort.api.wire import UNSET, UnsetType, replace
from antwort.providers.base import Capabilities, ChatMessage, ChatRequest


def suited(request: ChatRequest, capabilities: Capabilities) -> ChatRequest:
    """The request in the words of a backend with these capabilities; what it has no word for is left out."""
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
    """Without the list of allowed tools: whoever runs the calls holds them against it anyway."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        mode = allowed.get("mode") if isinstance(allowed, dict) else None
        return "required" if mode == "required" else UNSET
    return choice
