"""What the server relies on in uvicorn beyond its documented settings: to be looked at again for each minor version."""

from __future__ import annotations

import inspect

import uvicorn
from uvicorn.server import ServerState

from antwort.server.protocol import HttpProtocol

VERIFIED = "0.54"


def test_this_minor_version_of_uvicorn_is_one_that_the_connection_was_written_for() -> None:
    version = ".".join(uvicorn.__version__.split(".")[:2])
    assert version == VERIFIED, (
        "Compare uvicorn.server.Server (startup, shutdown, on_tick) with antwort.server.server, and how it makes and "
        "ends connections with antwort.server.protocol; then write the new version here and in pyproject.toml."
    )


def test_uvicorn_makes_a_connection_of_the_class_in_its_settings_with_these_parameters() -> None:
    assert uvicorn.Config(lambda: None, http=HttpProtocol).http is HttpProtocol
    parameters = [*inspect.signature(HttpProtocol).parameters]
    assert parameters == ["config", "server_state", "app_state", "_loop"]
    source = inspect.getsource(uvicorn.Server.startup)
    assert all(f"{name}=" in source for name in parameters)


def test_uvicorn_looks_at_connections_tasks_and_default_headers_and_ends_connections_itself() -> None:
    assert {"connections", "tasks", "default_headers", "total_requests"} <= vars(ServerState()).keys()
    assert "connection.shutdown()" in inspect.getsource(uvicorn.Server.shutdown)
