"""Check what items say: content that the backend can read, allowed addresses, and items that come to no message."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from antwort.api.decoding import Steps
from antwort.api.items import (
    ContentPart,
    CustomToolCall,
    FunctionCall,
    InputFile,
    InputImage,
    InputItem,
    InputVideo,
    McpCall,
    Message,
    OpaqueItem,
    is_additional,
)
from antwort.engine.context.compaction_item import is_trigger
from antwort.engine.history.calls import ITEMS_PER_STEP, CallIndex, CallView
from antwort.errors import InvalidField, UnsupportedFeature
from antwort.net.media import AddressNotAllowed, MediaHosts
from antwort.notes import note
from antwort.providers.base import Capabilities

_log = logging.getLogger("antwort.engine")

_MEDIA = frozenset({InputImage, InputVideo, InputFile})
_NO_FILES = "No files are kept here to be named by 'file_id', and no address is fetched."
_MOST_TYPES, _LONGEST_TYPE = 10, 60
"""How much of the client's words a line of the log takes."""
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
        elif (view := CallView.of(item)) is not None and isinstance(found := view.result, tuple):
            place = {"function": ".output[{}]", "server": ".content[{}]", "foreign": ""}[view.owner]
            yield from _check_addresses(found, f"{path}[{i}]{place}", hosts)
        if i % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
            yield


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


# ---- items that come to no message ----


def omitted_steps(stretches: Sequence[Sequence[InputItem]]) -> Steps[None]:
    """Log the items, and parts of items, of the new input, the last stretch, that come to no message, in pieces."""
    new = stretches[-1]
    shown = (yield from _shown_steps(stretches)) if OpaqueItem in map(type, new) else set[int]()
    omitted: list[str] = []
    for item in new:
        match item:
            case FunctionCall(status="incomplete") | CustomToolCall(status="incomplete") | McpCall(status="incomplete"):
                omitted.append(str(item.__struct_config__.tag))
            case Message(role="assistant"):
                omitted += [str(part.__struct_config__.tag) for part in item.content if type(part) in _MEDIA]
            case OpaqueItem() if id(item) not in shown and not is_additional(item):
                if not is_trigger(item) or item is not new[-1]:
                    omitted.append(item.type)
    if omitted:
        kinds = [*dict.fromkeys(omitted)]
        types = ", ".join(each[:_LONGEST_TYPE] for each in kinds[:_MOST_TYPES])
        more = f", and {len(kinds) - _MOST_TYPES} more" if len(kinds) > _MOST_TYPES else ""
        text = "input items that say nothing to the model were left out"
        note(_log, logging.INFO, text, types=f"{types}{more}", items=len(omitted))


def _shown_steps(stretches: Sequence[Sequence[InputItem]]) -> Steps[set[int]]:
    """Return the identities of the items of calls that are shown, and of their results: calls as far as there are
    results for them, in order; results if there is a call.
    """
    views = (yield from CallIndex.steps([*chain.from_iterable(stretches)])).views
    results = Counter(view.call_id for view in views if view.is_answer)
    called = {view.call_id for view in views if view.is_open}
    yield
    shown = set[int]()
    for at, view in enumerate(views, 1):
        if at % ITEMS_PER_STEP == 0:
            yield
        if view.is_open:
            if results[view.call_id] > 0:
                shown.add(id(view.item))
            results[view.call_id] -= 1
        elif view.is_answer and view.call_id in called:
            shown.add(id(view.item))
    return shown
