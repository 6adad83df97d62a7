"""What the documentation shows of clients is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.test_pages import OF_CLIENTS
from pages import ROOT, Page


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_the_page_of_a_client_shows_what_happens(name: str, tmp_path: Path, demo_model: Path) -> None:
    with Page(ROOT / "docs" / "how-to" / f"{name}.md", tmp_path, demo_model) as page:
        page.play()
