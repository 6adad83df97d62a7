"""What the documentation shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SHOWN = re.compile(r"```python\n(?P<code>.*?)```\n\nprints\n\n```text\n(?P<output>.*?)```", re.DOTALL)


def test_the_script_in_the_testing_guide_prints_what_the_guide_says() -> None:
    shown = _SHOWN.search((ROOT / "docs/testing.md").read_text(encoding="utf-8"))
    assert shown is not None
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", shown["code"]], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == (shown["output"], "")


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
