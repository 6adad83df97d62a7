"""The transcript and the history: what is in them, and who can read them."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory, InMemoryHistory

from antwort.chat.answer import CallPart, ChatAnswer, Part, ProblemPart, ReasoningPart, TextPart
from antwort.chat.conversation import default_name, fenced, save, transcript
from antwort.chat.prompt import open_history

NOW = datetime(2026, 11, 15, 9, 5, 7, tzinfo=UTC)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_transcript_tells_all_that_was_shown() -> None:
    called = CallPart("add", "demo", '{"a": 1}', began=1.0, ended=1.5, output="2")
    broken = CallPart("sub", "demo", "{}", error="it broke")
    free_form = CallPart("note", arguments="two", output="ok")
    parts: list[Part] = [
        ReasoningPart("Hm.\nSo."),
        called,
        broken,
        free_form,
        ProblemPart("down"),
        TextPart("It is **2**."),
    ]
    answer = ChatAnswer(0.0, parts, "completed")
    answer.model = "m"
    cut = ChatAnswer(0.0, [TextPart("Half")], "failed", problem="The answer broke off.")
    assert transcript([("How much?", answer), ("And now?", cut)], "m", NOW) == (
        "# Chat with m\n\n2026-11-15 09:05\n\n## You\n\nHow much?\n\n## m\n\n> Hm.\n> So.\n\n"
        '**demo.add**, 0.5 s\n\n```json\n{"a": 1}\n```\n\n```\n2\n```\n\n'
        "**demo.sub**, failed\n\n```json\n{}\n```\n\n```\nit broke\n```\n\n"
        "**note**\n\n```\ntwo\n```\n\n```\nok\n```\n\n*down*\n\nIt is **2**.\n\n"
        "## You\n\nAnd now?\n\n## Answer\n\nHalf\n\n*The answer broke off.*\n"
    )


def test_a_transcript_gives_no_orders_to_the_terminal_that_shows_it() -> None:
    text = transcript([("\x1b[2J", ChatAnswer(0.0, [TextPart("\x1b]0;x\x07")], "completed"))], "\x9b", NOW)
    assert "\x1b" not in text
    assert "\x9b" not in text


def test_a_fence_is_longer_than_those_within() -> None:
    assert fenced("a\n```\nb") == "````\na\n```\nb\n````"


def test_a_transcript_is_for_nobody_else_and_replaces_nothing_unasked(tmp_path: Path) -> None:
    file = tmp_path / "chat.md"
    save(file, "one")
    assert (file.read_text(), mode(file)) == ("one", 0o600)
    with pytest.raises(FileExistsError):
        save(file, "two")
    file.chmod(0o644)
    save(file, "three", overwrite=True)
    assert (file.read_text(), mode(file)) == ("three", 0o644)
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_in_its_place_stays_one_and_is_followed_only_by_force(tmp_path: Path) -> None:
    file, link, nowhere = tmp_path / "file", tmp_path / "link", tmp_path / "nowhere"
    file.write_text("precious")
    link.symlink_to(file)
    nowhere.symlink_to(tmp_path / "new")
    for place in (link, nowhere):
        with pytest.raises(FileExistsError):
            save(place, "x")
    assert file.read_text() == "precious"
    for place in (link, nowhere):
        save(place, "x", overwrite=True)
        assert (place.is_symlink(), place.read_text()) == (True, "x")
    assert (file.read_text(), mode(tmp_path / "new")) == ("x", 0o600)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_file_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    """And nobody is told that force would help."""
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    for place, said in ((folder, "it is a folder"), (pipe, "it is not a file")):
        with pytest.raises(OSError, match=said) as caught:
            save(place, "x", overwrite=overwrite)
        assert not isinstance(caught.value, FileExistsError)
    assert (pipe.is_fifo(), sorted(tmp_path.iterdir())) == (True, [folder, pipe])


def test_a_transcript_keeps_what_was_said_as_it_was_said() -> None:
    answer = ChatAnswer(0.0, [TextPart("a:\n\tb \u200fc\u200e\r\nd")], "completed")
    assert "a:\n\tb \u200fc\u200e\nd\n" in transcript([("x", answer)], "m", NOW)


def test_the_usual_name_tells_when() -> None:
    assert default_name(NOW) == "antwort-chat-2026-11-15-090507.md"


# ---- history ----


def test_the_history_is_for_nobody_else_whatever_it_was(tmp_path: Path) -> None:
    file = tmp_path / "state" / "antwort" / "chat-history"
    history = open_history(file)
    assert isinstance(history, FileHistory)
    history.store_string("two\nlines")
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    file.chmod(0o644)
    again = open_history(file)
    assert mode(file) == 0o600
    assert list(again.load_history_strings()) == ["two\nlines"]


def test_a_history_that_cannot_be_kept_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert isinstance(open_history(tmp_path / "file" / "history"), InMemoryHistory)
    assert isinstance(open_history(None), InMemoryHistory)


def test_a_history_that_cannot_be_written_any_more_harms_nobody(tmp_path: Path) -> None:
    file = tmp_path / "state" / "chat-history"
    history = open_history(file)
    file.unlink()
    file.parent.rmdir()
    history.append_string("one")
    assert history.get_strings() == ["one"]


def test_of_a_long_history_the_older_half_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "chat-history"
    history = FileHistory(file)
    for number in range(1200):
        history.store_string(f"{number} " + "x" * 1000)
    kept = list(open_history(file).load_history_strings())
    assert file.stat().st_size < 600_000
    assert 400 < len(kept) < 600
    assert kept[0].startswith("1199 ")
    assert all(len(entry) > 1000 for entry in kept)
