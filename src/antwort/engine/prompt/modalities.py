"""What the backend can read, looked at before it is asked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

from antwort.api.items import InputFile, InputImage, InputItem, InputVideo, Message
from antwort.errors import UnsupportedFeature
from antwort.providers.base import Capabilities


def check_capabilities(
    stretches: Sequence[Sequence[InputItem]],
    capabilities: Capabilities,
    earlier_param: str = "previous_response_id",
    first: int = 0,
) -> None:
    """Refuse what the backend cannot read, before it is asked. The new input is the last stretch; its items are counted
    from `first` on.

    Results of calls are let through: a client that sends all that was said each time would be barred for good by one
    picture that a tool gave. The model is told of it in words instead.
    """
    *earlier, new = stretches
    for said in (item for stretch in earlier for item in stretch if isinstance(item, Message)):
        for content in said.content:
            _check_part(content, earlier_param, capabilities)
    for i, item in enumerate(new, start=first):
        for j, part in enumerate(item.content if isinstance(item, Message) else ()):
            _check_part(part, f"input[{i}].content[{j}]", capabilities)


def has_media(messages: Iterable[InputItem]) -> bool:
    """Whether there is anything in them that not every backend can read. All of them are messages."""
    return not _MEDIA.isdisjoint(map(type, chain.from_iterable(map(_content_of, messages))))


_MEDIA = frozenset({InputImage, InputVideo, InputFile})
_content_of = attrgetter("content")


def _check_part(part: object, path: str, capabilities: Capabilities) -> None:
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


_NO_FILES = "No files are kept here to be named by 'file_id', and no address is fetched."
