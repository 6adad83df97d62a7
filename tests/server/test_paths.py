"""The path that a request is for, however the application is mounted and whoever mounts it."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.server.exchange import raw_path


def scope(path: str, raw: str | None = None, root: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"path": path}
    if raw is not None:
        made["raw_path"] = raw.encode("latin-1")
    if root is not None:
        made["root_path"] = root
    return made


@pytest.mark.parametrize(
    ("path", "raw", "root", "seen"),
    [
        ("/v1/responses", "/v1/responses", "", "/v1/responses"),
        ("/v1/responses", None, None, "/v1/responses"),
        ("/v1/models/a/b", "/v1/models/a%2Fb", "", "/v1/models/a%2Fb"),
        ("/v1/models/a b", None, "", "/v1/models/a%20b"),
        # as ASGI says it, and as current Starlette and uvicorn do it: the root is in the path
        ("/ai/v1/responses", "/ai/v1/responses", "/ai", "/v1/responses"),
        ("/ai/v1/responses", None, "/ai", "/v1/responses"),
        ("/ai/v1/models/a/b", "/ai/v1/models/a%2Fb", "/ai", "/v1/models/a%2Fb"),
        ("/x/y/v1/responses", "/x/y/v1/responses", "/x/y", "/v1/responses"),
        ("/v1/v1/responses", "/v1/v1/responses", "/v1", "/v1/responses"),
        # as older ones did: the root is off the path, and still in what the client wrote
        ("/v1/responses", "/ai/v1/responses", "/ai", "/v1/responses"),
        ("/v1/models/a/b", "/ai/v1/models/a%2Fb", "/ai", "/v1/models/a%2Fb"),
        ("/v1/responses", "/v1/v1/responses", "/v1", "/v1/responses"),
        # behind a proxy that takes the root off itself
        ("/v1/responses", "/v1/responses", "/ai", "/v1/responses"),
        ("/v1/responses", None, "/ai", "/v1/responses"),
        # a root with letters that are written otherwise in an address, or with a slash at its end
        ("/für alle/v1/responses", "/f%C3%BCr%20alle/v1/responses", "/für alle", "/v1/responses"),
        ("/a/b/v1/responses", "/a%2Fb/v1/responses", "/a/b", "/v1/responses"),
        ("/ai/v1/responses", "/ai/v1/responses", "/ai/", "/v1/responses"),
        # a root that the path only begins like
        ("/aims/v1", "/aims/v1", "/ai", "/aims/v1"),
        ("/ai", "/ai", "/ai", "/"),
        ("/ai/", "/ai/", "/ai", "/"),
        # a middleware that changes the path knows better than the client
        ("/v1/responses", "/old/address", "", "/v1/responses"),
        ("/ai/v1/responses", "/old/address", "/ai", "/v1/responses"),
    ],
)
def test_the_path_below_the_mount(path: str, raw: str | None, root: str | None, seen: str) -> None:
    assert raw_path(scope(path, raw, root)) == seen
