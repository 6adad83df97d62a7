"""Paths as an operator writes them, and the user's own folders. Not every user has a home."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def expanded(path: str) -> str:
    """The path with a home folder in the place of a `~` at its beginning. Raises `ValueError`, which says why not."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError as exc:
        raise ValueError(f"begins with {path.partition('/')[0]!r}, and no such home folder is known") from exc


def own_folder(of: Literal["config", "data"]) -> Path | None:
    """The user's own folder for the application; None for a user without a home."""
    import platformdirs

    find = platformdirs.user_config_path if of == "config" else platformdirs.user_data_path
    try:
        folder = find("antwort", appauthor=False)
    except RuntimeError:
        return None
    return None if str(folder).startswith("~") else folder
