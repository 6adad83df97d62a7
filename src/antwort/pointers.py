"""References within a JSON schema. Pure: nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_LONGEST = 32
"""References in a row. Nobody writes more, except to keep us busy, and a circle is endless."""
_FARTHEST = 1000
"""Characters of one."""


def resolved(reference: str, root: Mapping[str, Any]) -> tuple[str, object]:
    """Where a reference leads in the end, and what stands there: None for what is not in the document."""
    for _ in range(_LONGEST):
        target = found(reference, root)
        if not isinstance(target, dict) or not isinstance(further := target.get("$ref"), str) or len(target) > 1:
            return reference, target
        reference = further
    return reference, None


def found(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference points to, be it another one."""
    if reference == "#":
        return root
    if not reference.startswith("#/") or len(reference) > _FARTHEST:
        return None
    place: object = root
    for step in unquote(reference[2:]).split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        else:
            place = place.get(key) if isinstance(place, dict) else None
    return place
