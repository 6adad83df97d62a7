"""`antwort openapi`: the API's document, for those who make programs of it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from antwort.cli.say import tell

_DEFAULT = "http://127.0.0.1:8080"
"""Where `antwort serve` listens unless told otherwise."""


def run(_: Mapping[str, object]) -> int:
    from antwort.server.description import servers
    from antwort.server.openapi.document import document

    return tell(json.dumps({**document(), "servers": servers(_DEFAULT)}, indent=2, ensure_ascii=False))
