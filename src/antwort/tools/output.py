"""Cut the output of a tool to a size, and mark what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from antwort.api.items import InputFile, InputImage, InputText, InputVideo, OutputText, ResultPart, Text
from antwort.tools.base import Output

TextPart: TypeAlias = InputText | OutputText | Text
MediaPart: TypeAlias = InputImage | InputFile | InputVideo

_WORDS: dict[type[MediaPart], str] = {InputImage: "image", InputFile: "file", InputVideo: "video"}


def cut_output(output: Output, text_bytes: int, media_bytes: int) -> Output:
    """Return the output with at most so many bytes of text and of other content, each in all parts together.

    Text is cut at a character and followed by a mark; another part that does not fit is replaced by a sentence.
    """
    if isinstance(output, str):
        if output.isascii() and len(output) <= text_bytes:
            return output
        (part,) = _cut_text((Text(text=output),), text_bytes)
        return part.text
    capped = iter(_cut_text([part for part in output if isinstance(part, TextPart)], text_bytes))
    parts = (next(capped, None) if isinstance(part, TextPart) else part for part in output)
    return tuple(_cut_media([part for part in parts if part is not None], media_bytes))


def _cut_text(parts: tuple[TextPart, ...] | list[TextPart], limit: int) -> list[TextPart]:
    """Return the parts up to the one that exceeds the limit, which is cut and marked."""
    texts = [_utf8(part.text) for part in parts]
    total, left = sum(map(len, texts)), limit
    kept: list[TextPart] = []
    for part, text in zip(parts, texts, strict=True):
        if len(text) > left:
            piece = text[:left].decode(errors="ignore")
            mark = f"\n[output cut: {total} bytes, {limit - left + len(piece.encode())} kept]"
            return [*kept, replace(part, text=piece + mark)]
        left -= len(text)
        kept.append(replace(part, text=text.decode()))
    return kept


def _cut_media(parts: list[ResultPart], limit: int) -> Iterator[ResultPart]:
    left = limit
    for part in parts:
        if isinstance(part, TextPart):
            yield part
        elif (size := _size(part)) <= left:
            left -= size
            yield part
        else:
            yield InputText(text=f"[{_WORDS[type(part)]} left out: {size} bytes, where {left} of {limit} were left]")


def _size(part: MediaPart) -> int:
    return sum(len(value) for value in msgspec.structs.asdict(part).values() if isinstance(value, str))


def _utf8(text: str) -> bytes:
    """Encode a text without lone surrogates, which no client could decode."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
