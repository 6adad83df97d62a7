"""A package index on loopback, and a wheel with a small file in the place of a model, for what fetches it."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from antwort.local.demo import PackagedModel

CONTENT = b"GGUF and then some weights. " * 400
LICENCE = b"Do as you like.\n"
PACKAGE, VERSION = "tiny-model", "1.0"
INFO = "tiny_model-1.0.dist-info"
MEMBER = "tiny_model/tiny.Q4.gguf"
FILES: Mapping[str, bytes] = {MEMBER: CONTENT, f"{INFO}/LICENSE": LICENCE}


def make_wheel(folder: Path, files: Mapping[str, bytes] = FILES) -> PackagedModel:
    """A wheel with these files in `folder`, and how it is pinned: as holding `CONTENT`, whatever it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    meta = {
        f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n".encode(),
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members = {**files, **meta}
    record = "".join(f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in members.items())
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**members, f"{INFO}/RECORD": f"{record}{INFO}/RECORD,,\n".encode()}.items():
            archive.writestr(name, data)
    return PackagedModel(
        title="Tiny",
        package=PACKAGE,
        version=VERSION,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_size=wheel.stat().st_size,
        member=MEMBER,
        licence=f"{INFO}/LICENSE",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


class Index:
    """What it was asked for, and how it is to answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.asked: list[str] = []
        self.was_asked = threading.Event()
        self.status = 200
        self.go_on = threading.Event()
        """Cleared, an answer waits for it."""
        self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    def url_of(self, user: str, password: str) -> str:
        return self.url.replace("://", f"://{user}:{password}@")


@contextmanager
def package_index(folder: Path) -> Iterator[Index]:
    """The wheels of a folder by PEP 503."""
    index = Index(folder)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            index.was_asked.set()
            index.go_on.wait()
            body = _page(index.folder) if self.path.endswith("/") else _wheel(index.folder)
            self.send_response(index.status)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    index.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        index.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _page(folder: Path) -> bytes:
    return "".join(f'<a href="../../files/{wheel.name}">{wheel.name}</a>' for wheel in folder.glob("*.whl")).encode()


def _wheel(folder: Path) -> bytes:
    return next(folder.glob("*.whl")).read_bytes()
