"""Addresses of pictures and videos in what a client sends: those that may not be named are refused. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antwort.api.items import (
    ContentPart,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputItem,
    InputVideo,
    McpCall,
    Message,
    OpaqueItem,
)
from antwort.api.steps import Steps
from antwort.engine.history.calls import result_of
from antwort.errors import InvalidField
from antwort.net.media import AddressNotAllowed, MediaHosts


def media_steps(items: Sequence[InputItem], path: str, hosts: MediaHosts) -> Steps[None]:
    """Raises `InvalidField` for the first address that the backend would fetch and that may not be named."""
    for i, item in enumerate(items):
        if isinstance(item, Message):
            if not _MEDIA.isdisjoint(map(type, item.content)):
                yield from _check_parts(item.content, f"{path}[{i}].content", hosts)
        elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            if not isinstance(item.output, str):
                yield from _check_parts(item.output, f"{path}[{i}].output", hosts)
        elif isinstance(item, McpCall):
            yield from _check_parts(item.content or (), f"{path}[{i}].content", hosts)
        elif isinstance(item, OpaqueItem) and isinstance(found := result_of(item), tuple):
            for part in found:
                if type(part) in _MEDIA:
                    _check_part(part, f"{path}[{i}]", hosts)
                    yield


_MEDIA = frozenset({InputImage, InputVideo, InputFile})


def _check_parts(parts: Sequence[ContentPart], path: str, hosts: MediaHosts) -> Steps[None]:
    for j, part in enumerate(parts):
        if type(part) in _MEDIA:
            _check_part(part, f"{path}[{j}]", hosts)
            yield


def _check_part(part: ContentPart, path: str, hosts: MediaHosts) -> None:
    for field, url in _addresses(part):
        try:
            hosts.check(url)
        except AddressNotAllowed as exc:
            raise InvalidField(f"{path}.{field}", str(exc)) from exc


def _addresses(part: ContentPart) -> Iterator[tuple[str, str]]:
    """What is passed on. Bytes of a file are, too, and are no address unless they look like one."""
    if isinstance(part, InputImage):
        if part.image_url is not None:
            yield "image_url", part.image_url
    elif isinstance(part, InputVideo):
        yield "video_url", part.video_url
    elif isinstance(part, InputFile) and isinstance(part.file_data, str) and ":" in part.file_data[:32]:
        yield "file_data", part.file_data
