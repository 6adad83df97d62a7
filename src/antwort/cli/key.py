"""`antwort key`: an API key and its hash."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Mapping

from antwort.cli.say import tell
from antwort.config.settings import NAME_IN_WORDS, is_name

_PREFIX = "sk-antwort-"


def run(given: Mapping[str, object]) -> int:
    name = str(given.get("name", "default"))
    if not is_name(name):
        print(f"antwort key: --name must be {NAME_IN_WORDS}.", file=sys.stderr)
        return 2
    from antwort.config.shown import written

    key = _PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return tell(
        key,
        "",
        "This is the only time that the key is shown. The server needs only its hash, in antwort.yaml:",
        "",
        "auth:",
        "  keys:",
        f"    - name: {written(name)}",
        f"      sha256: {digest}",
    )
