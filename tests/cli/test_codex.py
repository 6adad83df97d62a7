"""`antwort codex`: the block for Codex's configuration, and a file in which nothing else changes."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.cli import codex, main
from antwort.cli.codex import Server, base_of
from antwort.cli.codex_config import Block, Unsure, changed
from antwort.config.problems import CannotStart
from live_server import launched, start
from replay import answering
from replay_backend import Answer, whole

URL = "http://127.0.0.1:8080/v1"
BLOCK = Block(
    top={"model": "qwen3", "model_provider": "antwort"},
    provider={"base_url": URL, "wire_api": "responses"},
    usual={"request_max_retries": 2},
    unwanted={"env_key": "ANTWORT_API_KEY"},
)
WITH_KEY = BLOCK._replace(provider={**BLOCK.provider, "env_key": "ANTWORT_API_KEY"}, unwanted={})
TABLE = f"""[model_providers.antwort]
name = "antwort"
base_url = "{URL}"
wire_api = "responses"
request_max_retries = 2
"""
TRICKY = 'notify = [\n  "a", # [not.a.table]\n]\ntext = """\n[model_providers.antwort]\n"""\n'
BELOW = "[model_providers.antwort.http_headers]\nx = 'y'\n"
TOP = 'model = "qwen3"\nmodel_provider = "antwort"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("ANTWORT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return tmp_path / "codex"


# ---- the text ----


def test_the_block_is_what_codex_reads() -> None:
    assert str(BLOCK) == f"{TOP}\n{TABLE}".rstrip("\n")
    assert tomllib.loads(str(WITH_KEY))["model_providers"]["antwort"]["env_key"] == "ANTWORT_API_KEY"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{TOP}\n{TABLE}"),
        ("# mine\n", f"{TOP}\n# mine\n\n{TABLE}"),
        ("[tui]\ntheme = 'x'\n", f"{TOP}\n[tui]\ntheme = 'x'\n\n{TABLE}"),
        (
            'model = "gpt-5"  # the best\nsandbox_mode = "read-only"',
            f'model = "qwen3"  # the best\nsandbox_mode = "read-only"\nmodel_provider = "antwort"\n\n{TABLE}',
        ),
        (
            f'{TRICKY}\n[a]\nmodel = "kept"\n',
            f'{TRICKY}{TOP}\n[a]\nmodel = "kept"\n\n{TABLE}',
        ),
        (
            f'{TOP}[model_providers.antwort]\nbase_url = "http://old/v1"  # here\nwire_api = "responses"\n\n[b]\nc = 1',
            f'{TOP}[model_providers.antwort]\nbase_url = "{URL}"  # here\nwire_api = "responses"\n\n[b]\nc = 1',
        ),
        (
            f"{TOP}[model_providers.antwort]\n{BELOW}",
            f'{TOP}[model_providers.antwort]\nbase_url = "{URL}"\nwire_api = "responses"\n{BELOW}',
        ),
    ],
)
def test_only_what_belongs_to_it_changes(before: str, after: str) -> None:
    assert changed(before, BLOCK) == after
    assert changed(after, BLOCK) == after


def test_lines_end_as_they_do_in_the_file() -> None:
    after = changed("a = 1\r\n[b]\r\nc = 2\r\n", BLOCK)
    assert "\n" not in after.replace("\r\n", "")
    assert after.startswith('a = 1\r\nmodel = "qwen3"\r\n')


def test_a_key_comes_and_goes_with_the_server_that_wants_one() -> None:
    with_key = changed(f"{TOP}\n{TABLE}", WITH_KEY)
    assert 'env_key = "ANTWORT_API_KEY"' in with_key
    assert changed(with_key, BLOCK) == f"{TOP}\n{TABLE}"


def test_what_the_user_has_set_of_the_provider_stays() -> None:
    own = f"{TOP}\n{TABLE}".replace("request_max_retries = 2", "request_max_retries = 9").replace(
        '"antwort"\nbase', '"me"\nbase'
    )
    assert changed(own + 'env_key = "MY_OWN"\n', BLOCK) == own + 'env_key = "MY_OWN"\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model = \n", "is not valid TOML"),
        ("model = 1\nmodel = 2\n", "is not valid TOML"),
        ('model_providers.antwort.name = "x"\n', "has model_providers in a form other than"),
        ('model_providers = {antwort = {name = "x"}}\n', "has model_providers in a form other than"),
        ('[model_providers]\nantwort = {name = "x"}\n', "has the provider 'antwort' in a form other than"),
        ('[model_providers]\nantwort.name = "x"\n', "has the provider 'antwort' in a form other than"),
        ('model = """\ngpt-5"""\n', "has model in a form that cannot be changed safely"),
        ("[model]\nname = 'x'\n", "cannot be changed safely"),
        ("[[model_providers.antwort]]\nname = 'x'\n", "cannot be changed safely"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unsure, match=why.replace("[", r"\[")):
        changed(text, BLOCK)


_lines = st.sampled_from(
    [
        "",
        "# a comment",
        'model = "gpt-5"',
        "model = 'gpt-5' # why",
        'model_provider = "x"',
        'a."b.c" = 1',
        "d = [\n 1,\n]",
        's = """\n[model_providers.antwort]\n"""',
        "[tui]",
        "[[x]]",
        "[model_providers]",
        "[model_providers.other]",
        "[model_providers.antwort]",
        "[model_providers.antwort.query_params]",
        'base_url = "b"',
        'env_key = "ANTWORT_API_KEY"',
        "name = 'n'",
        "antwort = 3",
        "antwort.name = 'x'",
    ]
)


@given(st.lists(_lines, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_whatever_is_in_the_file_stays_there_or_the_file_is_refused(lines: list[str], end: str, is_ended: bool) -> None:
    text = end.join(line.replace("\n", end) for line in lines) + (end if is_ended else "")
    try:
        after = changed(text, BLOCK)
    except Unsure:
        return
    said = tomllib.loads(after)
    assert said["model"] == "qwen3"
    assert said["model_providers"]["antwort"]["base_url"] == URL
    assert changed(after, BLOCK) == after
    for line in text.split(end):
        is_ours = line.split(" ")[0] in {*BLOCK.top, *BLOCK.provider, "env_key"}
        assert is_ours or text.count(line) <= after.count(line)


# ---- the address ----


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8080", URL),
        ("127.0.0.1:8080/", URL),
        (f"{URL}/", URL),
        (f"{URL}/responses", URL),
        ("https://ai.example.com/antwort", "https://ai.example.com/antwort/v1"),
    ],
)
def test_the_address_is_the_base_of_the_api(url: str, base: str) -> None:
    assert base_of(url, "--url") == base


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://me:secret@host",
        "http://host?key=secret",
        "http://h:0",
        "http://h:x",
        "http://x secret",
        "http://[::1",
        "http://x\x1b[31m",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(CannotStart) as caught:
        base_of(url, "--url")
    assert "secret" not in str(caught.value)


def test_an_address_that_is_none_is_the_fault_of_whoever_said_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", "http://x y"]) == 2
    assert "--url must be the address of a server" in capsys.readouterr().err
    monkeypatch.setenv("ANTWORT_URL", "http://x y")
    assert main(["codex"]) == 1
    assert "ANTWORT_URL must be the address of a server" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["ä..x", "a" * 70])
def test_a_host_that_cannot_be_is_one_where_nobody_answers(
    host: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", f"http://{host}"]) == 1
    assert "No server answers at" in capsys.readouterr().err


# ---- servers that are none ----


async def _looked(answer: Answer, key: str = "", timeout_seconds: float = 5.0) -> Server:
    async with answering(lambda _: answer) as server:
        return await asyncio.to_thread(codex.look, f"{server.url}/v1", key, timeout_seconds)


@pytest.mark.parametrize("body", [b"<html>", b"[" * 200_000, b"", b'{"data": 3}', b'{"data":[{"id":"a\\ud800"}]}'])
async def test_what_is_no_list_of_models_is_told_as_none(body: bytes) -> None:
    assert await _looked(whole(body)) == Server(None, None, 200)


async def test_names_that_a_terminal_would_obey_are_passed_over() -> None:
    body = rb'{"data":[{"id":"a\u001b]0;pwned\u0007"},{"id":"qwen3"}]}'
    assert (await _looked(whole(body))).models == ("qwen3",)


async def test_a_context_that_the_server_tells_of_is_told_to_codex(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b'{"data":[{"id":"small","context_length":4096},{"id":"odd"}]}'
    told = []
    async with answering(lambda _: whole(body)) as server:
        for model in ("small", "odd"):
            assert await asyncio.to_thread(main, ["codex", "--url", server.url, "--model", model]) == 0
            told.append(tomllib.loads(capsys.readouterr().out).get("model_context_window"))
    assert told == [4096, None]


async def test_a_list_that_drips_is_given_up_in_time() -> None:
    async with asyncio.timeout(10):
        assert (await _looked(Answer((b'{"da',), ending="hold"), timeout_seconds=0.3)).models is None


async def test_a_key_that_no_header_can_hold_is_not_sent() -> None:
    assert await _looked(whole(b"{}", 401), "schlüssel") == Server(None, needs_key=True, status=0)


def test_what_answers_and_is_no_server_is_told_with_its_status() -> None:
    with pytest.raises(CannotStart, match=r"^A server answers with HTTP 200 where the models should be at URL:"):
        codex._only_model(Server(None, None, 200), "URL")


def test_a_model_that_cannot_be_printed_is_refused_and_no_folder_made(
    home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["codex", "--url", nowhere, "--model", "a\udcff", "--write"]) == 2
    assert capsys.readouterr().err == "antwort: --model must be a name that can be printed.\n"
    assert not home.exists()


def test_a_file_that_is_to_be_read_only_stays(home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "config.toml").write_text("# mine\n")
    (home / "config.toml").chmod(0o444)
    assert main(["codex", "--url", nowhere, "--model", "qwen3", "--write"]) == 1
    assert "cannot be written: it is read-only." in capsys.readouterr().err
    assert [path.name for path in home.iterdir()] == ["config.toml"]


# ---- the command ----


async def _codex(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    process = await start("codex", *arguments, environment=environment)
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_the_model_is_that_of_the_running_server(home: Path) -> None:
    async with launched("--scripted", "--memory") as server:
        status, output, errors = await _codex("--url", server.url)
    assert status == 0
    assert tomllib.loads(output) == {
        "model": "scripted",
        "model_provider": "antwort",
        "model_providers": {
            "antwort": {
                "name": "antwort",
                "base_url": server.url,
                "wire_api": "responses",
                "request_max_retries": 2,
                "stream_max_retries": 1,
                "stream_idle_timeout_ms": 600_000,
            }
        },
    }
    assert errors == f"For {home / 'config.toml'}; `antwort codex --write` adds it there.\n"


async def test_a_server_with_keys_is_asked_with_one_and_codex_is_told_where_it_is(home: Path) -> None:
    keys = {"ANTWORT_AUTH_KEYS": '[{"name": "me", "key": "sk-a-key-of-some-length"}]'}
    async with launched("--scripted", "--memory", environment=keys) as server:
        status, output, errors = await _codex("--url", server.url)
        assert (status, output) == (1, "")
        assert "wants a key: set ANTWORT_API_KEY" in errors
        wrong = await _codex("--url", server.url, environment={"ANTWORT_API_KEY": "sk-another"})
        assert (wrong[0], "sk-another" in wrong[2]) == (1, False)
        assert "does not take the key in ANTWORT_API_KEY" in wrong[2]
        right = await _codex("--url", server.url, environment={"ANTWORT_API_KEY": "sk-a-key-of-some-length"})
        unasked = await _codex("--url", server.url, "--model", "scripted")
    for status, output, _ in (right, unasked):
        assert status == 0
        assert tomllib.loads(output)["model_providers"]["antwort"]["env_key"] == "ANTWORT_API_KEY"
        assert "sk-a-key" not in output


@pytest.fixture
def nowhere(unused_tcp_port: int) -> str:
    return f"http://127.0.0.1:{unused_tcp_port}/v1"


def test_without_a_server_the_model_must_be_said(home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codex", "--url", nowhere]) == 1
    ways = "start one (`antwort serve`), say where it is (--url URL), or say --model MODEL."
    assert capsys.readouterr() == ("", f"antwort: No server answers at {nowhere}: {ways}\n")
    assert main(["codex", "--url", nowhere, "--model", "qwen3"]) == 0
    shown = capsys.readouterr()
    assert tomllib.loads(shown.out)["model"] == "qwen3"
    assert not home.exists()
    assert f"not checked: no server answers at {nowhere}." in shown.err


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (("a", "b"), "lists several models: a, b; say which one Codex is to use (--model MODEL)."),
        (tuple(f"m{n}" for n in range(10)), "m6, m7 and 2 more; say which one"),
        ((), "lists no models; say which one"),
    ],
)
async def test_of_several_models_one_must_be_said(
    models: tuple[str, ...], words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"data": [{"id": model} for model in models]}).encode()
    async with answering(lambda _: whole(body)) as server:
        assert await asyncio.to_thread(main, ["codex", "--url", server.url]) == 1
        assert words in capsys.readouterr().err
        assert await asyncio.to_thread(main, ["codex", "--url", server.url, "--model", "other"]) == 0
        assert "does not list 'other'" in capsys.readouterr().err


def test_write_makes_the_file_and_a_second_time_changes_nothing(
    home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write = ["codex", "--url", nowhere, "--model", "qwen3", "--write"]
    assert main(write) == 0
    file = home / "config.toml"
    assert capsys.readouterr().out == f"Written to {file}.\n"
    assert file.stat().st_mode & 0o777 == 0o600
    written = file.read_bytes()
    assert main(write) == 0
    assert capsys.readouterr().out == f"{file} says so already.\n"
    assert file.read_bytes() == written
    assert [path.name for path in home.iterdir()] == ["config.toml"]


def test_what_was_in_the_file_is_kept_beside_it_every_time(
    home: Path, nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    file = home / "config.toml"
    file.write_text('model = "gpt-5"\n')
    file.chmod(0o640)
    for model in ("one", "two"):
        assert main(["codex", "--url", nowhere, "--model", model, "--write"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Written to {file}. What was there is in config.toml.bak.",
        f"Written to {file}. What was there is in config.toml.bak1.",
    ]
    kept = [(home / name).read_text() for name in ("config.toml.bak", "config.toml.bak1", "config.toml")]
    assert [tomllib.loads(text)["model"] for text in kept] == ["gpt-5", "one", "two"]
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o640}


@pytest.mark.parametrize("content", [b"model = \n", b"\xff\xfe", b"model_providers.antwort.name = 'x'\n"])
def test_a_file_that_is_refused_stays_as_it_is(
    home: Path, nowhere: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "config.toml").write_bytes(content)
    assert main(["codex", "--url", nowhere, "--model", "qwen3", "--write"]) == 1
    assert "it is left as it is" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {"config.toml": content}


def test_a_link_to_the_file_stays_a_link(home: Path, nowhere: str, tmp_path: Path) -> None:
    home.mkdir()
    (tmp_path / "dotfiles.toml").write_text("# mine\n")
    (home / "config.toml").symlink_to(tmp_path / "dotfiles.toml")
    assert main(["codex", "--url", nowhere, "--model", "qwen3", "--write"]) == 0
    assert (home / "config.toml").is_symlink()
    assert 'model = "qwen3"' in (tmp_path / "dotfiles.toml").read_text()
