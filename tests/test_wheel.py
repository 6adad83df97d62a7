"""What is in the wheel, and what it installs."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_no_weights(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith((".gguf", ".npz", ".safetensors"))] == []
    assert wheel.stat().st_size < 2_000_000


def test_what_only_the_chat_and_local_models_need_is_installed_by_the_extra_demo(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    required = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", metadata, re.MULTILINE)
    needed = {"markdown-it-py", "prompt-toolkit", "rich", "xllamacpp"}
    assert {name for name, rest in required if "extra == 'demo'" in rest} == needed
    assert {name for name, rest in required if "extra == 'local'" in rest} == {"xllamacpp"}
    assert {name for name, rest in required if "extra ==" not in rest} & needed == set()
