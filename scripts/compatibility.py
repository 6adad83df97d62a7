"""Write docs/reference/compatibility.md from the lines of the last run of the clients."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    from clients.records import read_record
    from clients.table import LINES, PAGE, page

    PAGE.write_text(page(read_record(LINES)), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} tells what {LINES.relative_to(ROOT)} holds.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
