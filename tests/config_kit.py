"""Settings read from what a test gives: a file's text, variables, flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from antwort.config import BadSettings, CannotStart, Loaded, Settings, read


class Operator:
    """Somebody who configures a server. The file is called `antwort.yaml` and stands in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def writes(self, text: str | bytes, name: str = "antwort.yaml") -> Path:
        file = self.folder / name
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def reads(self, text: str | bytes = "", variables: Mapping[str, str] | None = None, **flags: object) -> Loaded:
        return read({"config": str(self.writes(text)), **flags}, environment=variables or {})

    def gets(self, text: str | bytes = "", variables: Mapping[str, str] | None = None, **flags: object) -> Settings:
        return self.reads(text, variables, **flags).settings

    def is_told(self, text: str | bytes = "", variables: Mapping[str, str] | None = None, **flags: object) -> list[str]:
        """All that is wrong, with the file's name in place of its path."""
        with pytest.raises(CannotStart) as caught:
            self.reads(text, variables, **flags)
        fault = caught.value
        said = [str(problem) for problem in fault.problems] if isinstance(fault, BadSettings) else [str(fault)]
        return [sentence.replace(f"{self.folder}/", "") for sentence in said]
