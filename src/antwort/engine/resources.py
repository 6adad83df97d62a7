"""The resources that the parts of an engine share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from antwort.crypto import Vault
from antwort.engine.settings import EngineSettings
from antwort.providers.base import Provider
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import RunLog
from antwort.tools.base import BaseExecutor


class Resources(msgspec.Struct, kw_only=True):
    """The backend, the tools, the storage and the settings of an engine. Only the settings may change."""

    provider: Provider
    executors: tuple[BaseExecutor, ...]
    store: ResponseStore
    runs: RunLog | None
    """The log of the runs that another process can continue; None: there are none."""
    settings: EngineSettings
    vault: Vault
    clock: Callable[[], float]
    """Returns seconds since the epoch, by which keys and approvals expire."""
