"""`antwort openapi`: the API's document, for those who make programs of it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from antwort.cli.say import tell


def run(_: Mapping[str, object]) -> int:
    from antwort.transport.openapi.document import document

    return tell(json.dumps(document(), indent=2, ensure_ascii=False))
