"""The key that a server seals with: from the settings, from the data folder, or of this process only."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from antwort.app import build
from antwort.config import CannotStart
from antwort.config.checks import check
from antwort.config.secrets import Secret
from antwort.config.settings import EncryptionSettings, Settings
from antwort.crypto import CannotOpen, Vault
from antwort.persistence import KEY_FILE, key_in, make_vault
from config_kit import Operator

OLD, NEW = "an old secret of some length", "a new secret of some length"


def set_up(folder: Path | None = None, *keys: str) -> Settings:
    secrets = tuple(Secret(key) for key in keys)
    data = None if folder is None else str(folder)
    return Settings(scripted=True, data=data, memory=data is None, encryption=EncryptionSettings(keys=secrets))


def opens(vault: Vault, token: str) -> bool:
    try:
        return vault.open("reasoning", "default", token) == b"hm"
    except CannotOpen:
        return False


def seals(vault: Vault) -> str:
    return vault.seal("reasoning", "default", b"hm")


def test_the_first_key_of_the_settings_seals_and_all_open() -> None:
    token = seals(make_vault(set_up(None, OLD)))
    both = make_vault(set_up(None, NEW, OLD))
    assert opens(both, token)
    assert not opens(make_vault(set_up(None, OLD)), seals(both))


def test_keys_are_read_as_other_secrets_are(tmp_path: Path) -> None:
    text = "encryption:\n  keys:\n    - {env: NEW_KEY}\n    - an old secret of some length\n"
    keys = Operator(tmp_path).gets(text, {"NEW_KEY": NEW}).encryption.keys
    assert [key.reveal() for key in keys] == [NEW, OLD]
    assert NEW not in repr(keys)


@pytest.mark.parametrize("value", [f'["{NEW}", "{OLD}"]', f"{NEW}, {OLD}"], ids=["as JSON", "with commas"])
def test_keys_may_come_from_the_environment(tmp_path: Path, value: str) -> None:
    keys = Operator(tmp_path).gets("", {"ANTWORT_ENCRYPTION_KEYS": value}).encryption.keys
    assert [key.reveal() for key in keys] == [NEW, OLD]


def test_a_key_that_is_too_short_is_named_and_not_repeated(tmp_path: Path) -> None:
    text = f"encryption:\n  keys:\n    - {OLD}\n    - guessable-words\n"
    (said,) = Operator(tmp_path).is_told(text)
    assert said.startswith("encryption.keys[1] is shorter than 16 characters")
    assert "openssl rand -hex 32" in said
    assert "guessable" not in said
    with pytest.raises(CannotStart, match=r"encryption\.keys\[0\] is shorter"):
        check(set_up(None, "short"))


def test_without_keys_one_is_made_and_kept_in_the_data_folder(tmp_path: Path) -> None:
    token = seals(make_vault(set_up(tmp_path)))
    file = tmp_path / KEY_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert opens(make_vault(set_up(tmp_path)), token), "the next start finds it"
    assert [each.name for each in tmp_path.iterdir()] == [KEY_FILE], "no draft is left"


def test_another_data_folder_has_another_key(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert not opens(make_vault(set_up(one)), seals(make_vault(set_up(other))))


def test_with_keys_in_the_settings_none_is_made(tmp_path: Path) -> None:
    make_vault(set_up(tmp_path, OLD))
    assert [*tmp_path.iterdir()] == []


def test_in_memory_the_key_ends_with_the_process() -> None:
    assert not opens(make_vault(set_up()), seals(make_vault(set_up())))


def test_servers_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    file, found, gate = tmp_path / KEY_FILE, list[str](), threading.Barrier(8)

    def start() -> None:
        gate.wait()
        found.append(key_in(file))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_key_that_another_server_made_meanwhile_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / KEY_FILE
    theirs = key_in(file)
    monkeypatch.setattr(os.path, "lexists", lambda _: False)  # it was not there when we looked
    assert key_in(file) == theirs
    assert [each.name for each in tmp_path.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_system_without_hard_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    def link(*_: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    file = tmp_path / KEY_FILE
    before = key_in(file) if is_there else None
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    key = key_in(file)
    assert before in (None, key)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("content", [b"", b"\n", b"too short\n", b"\xff\xfe\x00", b"x" * 44, b"a b" * 20])
def test_a_broken_key_file_is_named_and_not_replaced(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / KEY_FILE
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(CannotStart) as caught:
        make_vault(set_up(tmp_path))
    assert str(file) in str(caught.value)
    assert "delete it to have a new one made" in str(caught.value)
    assert file.read_bytes() == content


def test_a_key_file_that_cannot_be_read_or_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / KEY_FILE
    file.mkdir(mode=0o700)
    with pytest.raises(CannotStart, match=KEY_FILE):
        key_in(file)
    nowhere = tmp_path / "nowhere" / KEY_FILE
    with pytest.raises(CannotStart, match="No such file"):
        key_in(nowhere)
    link = tmp_path / "link"
    link.symlink_to(nowhere)
    with pytest.raises(CannotStart, match="link"):
        key_in(link)


def test_a_key_file_that_others_can_read_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = key_in(tmp_path / KEY_FILE)
    assert caplog.records == []
    (tmp_path / KEY_FILE).chmod(0o640)
    with caplog.at_level(logging.WARNING, "antwort"):
        assert key_in(tmp_path / KEY_FILE) == key
    (record,) = caplog.records
    assert "others can read the key" in record.getMessage()
    assert key not in str(record.__dict__)


async def test_a_server_whose_key_is_broken_does_not_start_and_lets_go_of_its_data(tmp_path: Path) -> None:
    file = tmp_path / KEY_FILE
    file.write_bytes(b"")
    with pytest.raises(CannotStart, match=KEY_FILE):
        await build(set_up(tmp_path))
    file.unlink()
    app = await build(set_up(tmp_path))  # would be refused if the store were still open
    await app.close()
    assert file.exists()
