"""The requirements manifest: every id with the tests that prove it, read off the marks in the tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Proofs: TypeAlias = dict[str, list[str]]
"""For each id that a test names, the tests that name it, sorted."""

_HEADER = re.compile(r"\[(?P<id>[^\[\]]+)\]\s*")


# ---- marks ----


def read_marks(root: Path) -> Proofs:
    """The marks of all tests of the project at `root`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "marks.json"
        options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "conformance.marks", f"--marks-to={file}"]
        # A run of its own: a test that asks may be one of a few that were chosen.
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "tests"],
            cwd=root,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the tests could not be collected:\n{done.stdout}{done.stderr}")
        proofs: Proofs = json.loads(file.read_text(encoding="utf-8"))
        return proofs


def _environment() -> dict[str, str]:
    """Ours, less what belongs to a run of pytest that is under way; and with the plugin in reach."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return {**kept, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


# ---- the file ----


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def written(text: str, proofs: Mapping[str, list[str]]) -> str:
    """The manifest `text` with the lists of tests as `proofs` has them; everything else stays as it is."""
    lines: list[str] = []
    current = ""
    is_inside_list = False
    for line in text.splitlines():
        if is_inside_list:
            is_inside_list = line.strip() != "]"
            continue
        if (header := _HEADER.fullmatch(line)) is not None:
            current = header["id"]
        if line.startswith("tests = ["):
            is_inside_list = not line.rstrip().endswith("]")
            lines += _listed(proofs.get(current, []))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _listed(tests: list[str]) -> list[str]:
    return ["tests = [", *(f'    "{test}",' for test in tests), "]"] if tests else ["tests = []"]


# ---- both ways ----


def faults(manifest: Mapping[str, Mapping[str, Any]], proofs: Mapping[str, list[str]]) -> list[str]:
    """Everything in which the manifest and the marks do not agree, and every id without a proof."""
    found = [f"{key} is not in the manifest, but {proofs[key][0]} proves it" for key in proofs.keys() - manifest.keys()]
    for key, entry in manifest.items():
        tests = proofs.get(key, [])
        if tests and "later" in entry:
            found.append(f"{key} has a test and is put off for later")
        if not tests and "later" not in entry:
            found.append(f"{key} has no test")
        if entry.get("tests") != tests:
            found.append(f"{key} lists other tests than those that carry its mark: run `make manifest`")
    return sorted(found)
