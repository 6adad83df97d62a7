"""What messages and results are made of, as Chat has it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antwort.api.items import (
    TEXTS,
    ContentPart,
    InputFile,
    InputImage,
    InputVideo,
    Message,
    ReasoningText,
    Refusal,
    ResultPart,
    SummaryText,
)
from antwort.providers.base import Capabilities, ChatMessage
from antwort.tools.base import Output


def chat_message(item: Message, capabilities: Capabilities) -> ChatMessage:
    role = item.role
    if role == "developer" and not capabilities.developer_role:
        role = "system"
    if _TEXTS.issuperset(map(type, item.content)):
        return ChatMessage(role=role, content=said_in(item.content))
    return ChatMessage(role=role, content=[_chat_part(part) for part in item.content])


def said_in(parts: Sequence[ContentPart]) -> str:
    return "\n".join(map(_part_text, parts))


_TEXTS = frozenset(TEXTS)
_WORDS = (*TEXTS, SummaryText, ReasoningText)


def _part_text(part: ContentPart) -> str:
    if isinstance(part, _WORDS):
        return part.text
    return part.refusal if isinstance(part, Refusal) else ""


def _chat_part(part: ContentPart) -> dict[str, Any]:
    match part:
        case InputImage():
            image: dict[str, Any] = {"url": part.image_url}
            if part.detail != "auto":
                image["detail"] = "high" if part.detail == "original" else part.detail  # the most there is in Chat
            return {"type": "image_url", "image_url": image}
        case InputFile():
            given = {"filename": part.filename, "file_data": part.file_data}
            return {"type": "file", "file": {key: value for key, value in given.items() if isinstance(value, str)}}
        case InputVideo():
            return {"type": "video_url", "video_url": {"url": part.video_url}}
        case _:
            return {"type": "text", "text": _part_text(part)}


def result_text(output: Output, capabilities: Capabilities) -> tuple[str, list[dict[str, Any]]]:
    """The text of a result, and its pictures: a tool message holds text only, so they follow in a user message.

    What the backend would refuse is only named: a tool cannot know what the model takes.
    """
    if isinstance(output, str):
        return output, []
    texts: list[str] = []
    pictures: list[dict[str, Any]] = []
    for part in output:
        text = _result_part_text(part)
        if text is None and _is_taken(part, capabilities):
            pictures.append(_chat_part(part))
            text = f"[{part.__struct_config__.tag}: shown in the next message]"
        texts.append(f"[{part.__struct_config__.tag}: the model does not take it]" if text is None else text)
    return "\n".join(texts), pictures


def _is_taken(part: ResultPart, capabilities: Capabilities) -> bool:
    if isinstance(part, InputFile):
        return capabilities.files and isinstance(part.file_data, str)
    return capabilities.vision and not (isinstance(part, InputImage) and part.image_url is None)


def _result_part_text(part: ResultPart) -> str | None:
    return part.text if isinstance(part, TEXTS) else None
