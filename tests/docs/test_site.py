"""The documentation as a site: it builds, its links lead somewhere, and what follows from the code does."""

from __future__ import annotations

import html.parser
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from antwort.api.requests import CreateRequest
from pages import ROOT

OURS = {"raw", "raw_input", "additional", "unknown_fields"}
_CODE = ("code", "script", "style")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


class Links(html.parser.HTMLParser):
    """What a page points at, what it loads, and the places in it that can be pointed at."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.text = ""
        self._code = 0
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._code += tag in _CODE
        given = {name: value for name, value in attributes if value is not None}
        self.places.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.targets.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(given["href"])

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in _CODE

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text += data


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 20
    lost = [
        f"{page.relative_to(site)} -> {target}"
        for page, links in pages.items()
        for target in (*links.targets, *links.loaded)
        if not _leads_somewhere(page, target, pages)
    ]
    assert lost == []


def _leads_somewhere(page: Path, target: str, pages: dict[Path, Links]) -> bool:
    parts = urlsplit(target)
    if parts.scheme in ("http", "https", "mailto", "data"):
        return True
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if file.is_dir():
        file /= "index.html"
    if not file.exists():
        return False
    return not parts.fragment or file not in pages or unquote(parts.fragment) in pages[file].places


def test_no_link_or_fence_is_left_as_it_was_written(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = Links(page).text
        assert "](" not in text, page
        assert "```" not in text, page


def test_a_reader_of_the_site_is_not_told_to_strangers(site: Path) -> None:
    """No page loads a script, a style, a font or a picture from elsewhere."""
    for page in site.rglob("*.html"):
        assert [source for source in Links(page).loaded if urlsplit(source).netloc] == []


def test_the_reference_is_what_the_code_says() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"run `make reference`: {done.stdout}{done.stderr}"


def test_every_field_of_a_request_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert [name for name in CreateRequest.__struct_fields__ if name not in OURS and f"`{name}`" not in page] == []
