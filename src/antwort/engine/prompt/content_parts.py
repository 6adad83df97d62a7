"""Content parts of messages and results: what the backend can read, allowed addresses, and the Chat form. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from antwort.api.decoding import Steps
from antwort.api.items import (
    TEXTS,
    ContentPart,
    InputFile,
    InputImage,
    InputItem,
    InputVideo,
    McpCall,
    Message,
    OpaqueItem,
    ReasoningText,
    Refusal,
    ResultPart,
    SummaryText,
)
from antwort.engine.history.calls import is_output, result_of
from antwort.errors import InvalidField, UnsupportedFeature
from antwort.net.media import AddressNotAllowed, MediaHosts
from antwort.providers.base import Capabilities, ChatMessage
from antwort.tools.base import Output

_TEXTS = frozenset(TEXTS)
_WORDS = (*TEXTS, SummaryText, ReasoningText)
_MEDIA = frozenset({InputImage, InputVideo, InputFile})
_NO_FILES = "No files are kept here to be named by 'file_id', and no address is fetched."
_content_of = attrgetter("content")


def has_media(messages: Iterable[InputItem]) -> bool:
    """Return whether any of these messages has a part that not every backend can read."""
    return not _MEDIA.isdisjoint(map(type, chain.from_iterable(map(_content_of, messages))))


# ---- capabilities ----


def check_capabilities(
    stretches: Sequence[Sequence[InputItem]],
    capabilities: Capabilities,
    earlier_param: str = "previous_response_id",
    first: int = 0,
) -> None:
    """Raise `UnsupportedFeature` for a part that the backend cannot read. The new input is the last stretch; its items
    are counted from `first` on.

    Results of calls are not checked: one image from a tool would bar a client that sends the whole history each time.
    The model reads of it in words instead.
    """
    *earlier, new = stretches
    for message in (item for stretch in earlier for item in stretch if isinstance(item, Message)):
        for content in message.content:
            _check_readable(content, earlier_param, capabilities)
    for i, item in enumerate(new, start=first):
        for j, part in enumerate(item.content if isinstance(item, Message) else ()):
            _check_readable(part, f"input[{i}].content[{j}]", capabilities)


def _check_readable(part: object, path: str, capabilities: Capabilities) -> None:
    if isinstance(part, InputImage):
        if not capabilities.vision:
            raise UnsupportedFeature("The model does not take images.", param=path)
        if part.image_url is None:
            raise UnsupportedFeature(f"Images are taken by 'image_url' only. {_NO_FILES}", param=path)
    elif isinstance(part, InputVideo) and not capabilities.vision:
        raise UnsupportedFeature("The model does not take videos.", param=path)
    elif isinstance(part, InputFile):
        if not capabilities.files:
            raise UnsupportedFeature("The model does not take files.", param=path)
        if not isinstance(part.file_data, str):
            raise UnsupportedFeature(f"Files are taken as 'file_data' only. {_NO_FILES}", param=path)


# ---- addresses ----


def media_steps(items: Sequence[InputItem], path: str, hosts: MediaHosts) -> Steps[None]:
    """Raise `InvalidField` for the first address that the backend would fetch and that is not allowed."""
    for i, item in enumerate(items):
        if isinstance(item, Message):
            if not _MEDIA.isdisjoint(map(type, item.content)):
                yield from _check_addresses(item.content, f"{path}[{i}].content[{{}}]", hosts)
        elif is_output(item):
            if not isinstance(item.output, str):
                yield from _check_addresses(item.output, f"{path}[{i}].output[{{}}]", hosts)
        elif isinstance(item, McpCall):
            yield from _check_addresses(item.content or (), f"{path}[{i}].content[{{}}]", hosts)
        elif isinstance(item, OpaqueItem) and isinstance(found := result_of(item), tuple):
            yield from _check_addresses(found, f"{path}[{i}]", hosts)


def _check_addresses(parts: Sequence[ContentPart], path: str, hosts: MediaHosts) -> Steps[None]:
    for j, part in enumerate(parts):
        if type(part) in _MEDIA:
            for field, url in _addresses(part):
                try:
                    hosts.check(url)
                except AddressNotAllowed as exc:
                    raise InvalidField(f"{path.format(j)}.{field}", str(exc)) from exc
            yield


def _addresses(part: ContentPart) -> Iterator[tuple[str, str]]:
    """Return the addresses of a part by their fields. The bytes of a file count only if they look like an address."""
    if isinstance(part, InputImage):
        if part.image_url is not None:
            yield "image_url", part.image_url
    elif isinstance(part, InputVideo):
        yield "video_url", part.video_url
    elif isinstance(part, InputFile) and isinstance(part.file_data, str) and ":" in part.file_data[:32]:
        yield "file_data", part.file_data


# ---- the Chat form ----


def chat_message(item: Message, capabilities: Capabilities) -> ChatMessage:
    role = item.role
    if role == "developer" and not capabilities.developer_role:
        role = "system"
    if _TEXTS.issuperset(map(type, item.content)):
        return ChatMessage(role=role, content=said_in(item.content))
    return ChatMessage(role=role, content=[_chat_part(part) for part in item.content])


def said_in(parts: Sequence[ContentPart]) -> str:
    return "\n".join(map(_part_text, parts))


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
    """Return the text of a result, and its images: a tool message holds text only, so they follow in a user message.

    A part that the backend would refuse is only named: a tool cannot know what the model takes.
    """
    if isinstance(output, str):
        return output, []
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for part in output:
        if isinstance(part, TEXTS):
            texts.append(part.text)
        elif _is_taken(part, capabilities):
            images.append(_chat_part(part))
            texts.append(f"[{part.__struct_config__.tag}: shown in the next message]")
        else:
            texts.append(f"[{part.__struct_config__.tag}: the model does not take it]")
    return "\n".join(texts), images


def _is_taken(part: ResultPart, capabilities: Capabilities) -> bool:
    if isinstance(part, InputFile):
        return capabilities.files and isinstance(part.file_data, str)
    return capabilities.vision and not (isinstance(part, InputImage) and part.image_url is None)
