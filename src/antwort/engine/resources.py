"""The resources that the parts of an engine share, and which of its models an identity may use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from antwort.api.responses import Model
from antwort.crypto import Vault
from antwort.engine.settings import EngineSettings
from antwort.identity import Identity
from antwort.providers.base import Provider
from antwort.storage.base import ResponseStore
from antwort.storage.run_log import RunLog
from antwort.suggestions import among
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


_LIST_SECONDS = 0.5
"""How long an error message waits for the list of models: less than `hold_back`, within which it is an HTTP error."""


async def usable_models(provider: Provider, identity: Identity) -> list[Model]:
    """Return the models that an identity may use."""
    return [model for model in await provider.models() if identity.may_use(model.id)]


async def model_hint(model: str, provider: Provider, identity: Identity) -> str:
    """Return, as sentences, which models an identity may use in place of one that it cannot have; an empty text where
    none is like it and they are many, or the backend does not list them. Whatever the provider raises, the error that
    the hint is for stands.
    """
    try:
        async with asyncio.timeout(_LIST_SECONDS):
            return among(model, [known.id for known in await usable_models(provider, identity)])
    except Exception:
        return ""
