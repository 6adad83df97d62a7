"""How the server's own lines look."""

from __future__ import annotations

import logging
import sys

from antwort.transport.exchange import REQUEST_ID


class Lines(logging.Formatter):
    """Every line that is written for a request names it, whichever room it comes from."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        line = super().formatMessage(record)
        request_id = REQUEST_ID.get()
        mark = f"request={request_id}"
        return f"{line} {mark}" if request_id and mark not in line.split() else line


def configure(level: str) -> None:
    """Log to standard error: ours from `level` on, other people's from warnings on."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(Lines("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[out], force=True)
    logging.getLogger("antwort").setLevel(level.upper())
