"""Create the vault of a server: with the keys of the settings, a key file in the data folder, or a temporary key."""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from antwort.config.problems import CannotStart
from antwort.config.secrets import read_secret_file
from antwort.config.settings import Settings
from antwort.notes import note
from antwort.vault import Vault

_log = logging.getLogger("antwort.sealing")

KEY_FILE = "seal.key"
_KEY = re.compile("[A-Za-z0-9_-]{43}")
"""32 random bytes in base64."""
_FIX = (
    "Bring it back from a copy, or delete it to have a new one made; what was sealed with the old key then cannot be "
    "opened any more."
)
_SET_KEYS = "With a database, encryption.keys can be set instead, the same in all processes."


def make_vault(settings: Settings) -> Vault:
    """Return the vault. Raises `CannotStart` if the key file cannot be read or created.

    Without a database, the data folder exists already.
    """
    if settings.encryption.keys:
        return Vault([key.reveal() for key in settings.encryption.keys])
    if settings.memory:
        return Vault.ephemeral()
    file = settings.data_folder() / KEY_FILE
    if settings.database is None:
        return Vault([kept_key(file)])
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Vault([kept_key(file)])
    except OSError as exc:
        raise CannotStart(f"The key file {str(file)!r} cannot be made or read: {exc.strerror}. {_SET_KEYS}") from exc
    except CannotStart as exc:
        raise CannotStart(f"{exc} {_SET_KEYS}") from exc


def kept_key(file: Path) -> str:
    """Return the key in the file, and create it if it does not exist. Concurrent processes get the same key."""
    try:
        if not os.path.lexists(file):
            _make(file)
        _check_mode(file)
        key = read_secret_file(file)
    except OSError as exc:
        raise CannotStart(f"The key file {str(file)!r} cannot be made or read: {exc.strerror}.") from exc
    except ValueError as exc:
        raise CannotStart(f"The key to seal with {exc}. {_FIX}") from exc
    if not _KEY.fullmatch(key):
        raise CannotStart(f"The key file {str(file)!r} does not hold a key. {_FIX}")
    return key


def _make(file: Path) -> None:
    """Write the key to a draft and link it, so that no process reads half of a key or replaces a key that exists."""
    key, draft = secrets.token_urlsafe(32), file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    with suppress(FileExistsError):  # another server was faster: its key counts
        try:
            _write(draft, key)
            os.link(draft, file)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links, or one that cannot be written
            _write(file, key)
        finally:
            draft.unlink(missing_ok=True)


def _write(file: Path, key: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(f"{key}\n")
        opened.flush()
        os.fsync(opened.fileno())


def _check_mode(file: Path) -> None:
    if os.name != "nt" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        note(_log, logging.WARNING, "others can read the key that reasoning is sealed with: chmod 600", file=str(file))
