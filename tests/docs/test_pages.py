"""What the documentation shows is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from pages import OF_A_MODEL, ROOT, Page, fits, masked, wordless

OF_CLIENTS = ("agents-sdk", "langchain", "pydantic-ai")
"""Their pages are played with the clients (`make test-clients`): it takes long to load them."""
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.stem not in OF_CLIENTS)]


def marked(path: Path) -> ParameterSet:
    """Pages that ask a real model are played one after the other, as all tests that do."""
    asks = OF_A_MODEL in path.read_text(encoding="utf-8")
    marks = [pytest.mark.xdist_group("model")] if asks else []
    return pytest.param(path, id=str(path.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("path", [marked(path) for path in PAGES])
def test_a_page_shows_what_happens(path: Path, tmp_path: Path, demo_model: Path) -> None:
    with Page(path, tmp_path, demo_model) as page:
        page.play()


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\nb\n", "a\nb"),
        ("a\n...\n", "a\nb\nc\n"),
        ("a\n...\nc\n", "a\nb\nb\nc\n"),
        ("...\n", ""),
        ("a … c", "a b c"),
        ("resp_0123456789abcdef0123456789abcdef", "resp_ffffffffffffffffffffffffffffffff"),
        ("took 3 ms", "took 17.5 ms"),
        ("", ""),
    ],
)
def test_output_fits_what_is_shown(shown: str, printed: str) -> None:
    assert fits(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [("a\n", "a\nb\n"), ("a\n...\nc\n", "a\nb\n"), ("a … c", "a b d"), ("", "a"), ("a", ""), ("resp_1", "resp_2")],
)
def test_output_that_is_not_what_is_shown_does_not_fit(shown: str, printed: str) -> None:
    assert not fits(shown, printed)


PROGRAM = """
```python
print("one")
print("two")
```

```text
one
two
```
"""


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (PROGRAM.replace("two\n```\n", "three\n```\n"), "but this comes out"),
        ("```python\nraise SystemExit(1)\n```\n", "fails"),
        ("```console\n$ echo one\ntwo\n```\n", "but this comes out"),
        ("```console\n$ false\n```\n", "ends with 1"),
        ("```console\n$ echo antwort: no\nantwort: no\n```\n", "ends with 0"),
        ("```console\n$ antwort serve --nonsense\nantwort … listens\n```\n", "the server ends with 2"),
        ("```json\n{\n```\n", "Expecting"),
        ("```sh\nantwort serve\n```\n", "must be run"),
        ("```yaml\nno_such_key: 1\n```\n", "no_such_key"),
        ("```ruby\nputs 1\n```\n", "nobody knows"),
    ],
)
def test_a_page_that_does_not_tell_the_truth_is_found_out(page: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    with pytest.raises((AssertionError, ValueError), match=complaint), Page(tmp_path / "page.md", tmp_path) as played:
        played.play()


def test_a_page_that_tells_the_truth_is_played(tmp_path: Path) -> None:
    page = (
        PROGRAM
        + '```console\n$ export WORD=two\n$ echo one; \\\necho $WORD\none\ntwo\n```\n```text title="f"\nx\n```\n'
    )
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    with Page(tmp_path / "page.md", tmp_path) as played:
        assert played.play() == 4


LOGGED = '{"time":"2026-11-19T19:20:36.680Z","level":"info","logger":"antwort.providers","message":"the backend %s"}'
LOADING = "local is out of reach: The model is still being loaded; try again in a few seconds."


@pytest.mark.parametrize("line", [LOADING, "local is back"])
def test_a_page_says_nothing_of_a_model_that_takes_long_to_load(line: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"```console\n$ echo one; echo '{LOGGED % line}'\none\n```\n", encoding="utf-8")
    with Page(tmp_path / "page.md", tmp_path) as played:
        assert played.play() == 1


@pytest.mark.parametrize("line", ["local is out of reach: The model has stopped.", "gpu is back"])
def test_other_lines_of_the_log_are_what_a_page_must_show(line: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"```console\n$ echo one; echo '{LOGGED % line}'\none\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="but this comes out"), Page(tmp_path / "page.md", tmp_path) as played:
        played.play()


def test_ids_times_and_durations_are_masked() -> None:
    line = '{"id":"resp_0123456789abcdef0123456789abcdef","created_at":1794715494,"time":"2026-11-15T05:50:50.123Z"}'
    assert masked(line) == '{"id":"resp_ID","created_at":TIME,"time":"TIME"}'


def test_only_the_words_of_a_model_may_differ() -> None:
    shown = '"name": "calculate",\n"output": "1 + 1 = 2",\n"text": "It is two."\nIt is two.\n'
    said = '"name": "calculate",\n"output": "1+1 = 2",\n"text": "Two, I \\"think\\"."\nTwo,\nI think.\n'
    assert fits(wordless(shown), wordless(said))
    assert not fits(wordless(shown), wordless(said.replace("calculate", "clock")))
    assert not fits(wordless(shown), wordless(said.rpartition("Two,")[0]))
