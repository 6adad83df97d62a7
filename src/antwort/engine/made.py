"""Responses that are there already: as they stand, as they ended, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antwort.api.approvals import Approval, ApprovalStatus
from antwort.api.responses import Response
from antwort.api.status import FINAL
from antwort.api.wire import replace
from antwort.engine.live import LiveRun
from antwort.errors import ApprovalNotFound, Cancelled, ResponseNotFound
from antwort.identity import Identity
from antwort.storage.base import ApprovalPage, ItemPage, Page, ResponsePage, ResponseStore, Wanted, as_of


class Made:
    """Those that a store keeps, and those of the runs under way here. What is not there, or not the identity's, is not
    found.
    """

    def __init__(
        self,
        store: ResponseStore,
        live: Mapping[str, LiveRun],
        unwritten: dict[str, LiveRun],
        clock: Callable[[], float],
    ) -> None:
        """`live` and `unwritten` are the engine's, by the id of the response. What gets written is taken out of the
        latter.
        """
        self._store, self._live, self._unwritten, self._clock = store, live, unwritten, clock

    async def retrieve(self, identity: Identity, response_id: str) -> Response:
        run = self._live_run(identity, response_id)
        if run is not None and run.response.store:
            return run.response if run.response.status not in FINAL else await run.result()
        await self.catch_up(identity, response_id)
        found = await self._store.get(identity, response_id)
        if found is None:
            raise ResponseNotFound(response_id)
        return found

    async def list(self, identity: Identity, page: Page, wanted: Wanted) -> ResponsePage:
        """Stored responses, each as it stands: of one that runs, what there is so far."""
        for response_id in [*self._unwritten]:
            await self.catch_up(identity, response_id)
        found = await self._store.responses(identity, page, wanted)
        return replace(found, responses=tuple(self._as_it_stands(identity, kept) for kept in found.responses))

    def _as_it_stands(self, identity: Identity, kept: Response) -> Response:
        """The record counts where the run has come to its end: nobody has been told of that before it is written."""
        run = self._live_run(identity, kept.id)
        return kept if run is None or run.response.status in FINAL else run.response

    async def delete(self, identity: Identity, response_id: str) -> None:
        """A running response is cancelled first, so that its record is true until it goes."""
        run = self._live_run(identity, response_id)
        if run is not None and run.response.store:
            await self.cancel(identity, response_id)
        if not await self._store.delete(identity, response_id):
            raise ResponseNotFound(response_id)
        self._unwritten.pop(response_id, None)

    async def cancel(self, identity: Identity, response_id: str) -> Response:
        """The response as it ended; one that had ended before is unchanged."""
        run = self._live_run(identity, response_id)
        if run is None:
            return await self.retrieve(identity, response_id)
        run.stop(Cancelled())
        return await run.result()

    async def input_items(self, identity: Identity, response_id: str, page: Page) -> ItemPage:
        found = await self._store.input_items(identity, response_id, page)
        if found is None:
            raise ResponseNotFound(response_id)
        return found

    async def approvals(self, identity: Identity, page: Page, status: ApprovalStatus | None) -> ApprovalPage:
        """Calls of stored responses that wait, or waited, for approval, each as it stands now."""
        for response_id in [*self._unwritten]:
            await self.catch_up(identity, response_id)
        now = int(self._clock())
        found = await self._store.approvals(identity, page, status, now)
        return replace(found, approvals=tuple(as_of(approval, now) for approval in found.approvals))

    async def approval(self, approval_id: str, identity: Identity) -> Approval:
        found = await self._store.find_approvals(identity, [approval_id])
        if approval_id not in found:
            raise ApprovalNotFound(approval_id)
        return as_of(found[approval_id], int(self._clock()))

    def _live_run(self, identity: Identity, response_id: str) -> LiveRun | None:
        run = self._live.get(response_id)
        return run if run is not None and run.identity.is_same(identity) else None

    async def catch_up(self, identity: Identity, response_id: str) -> None:
        """Put the end of a run on record that could not be recorded when it came. Nobody else learns of it, even by
        an error.
        """
        run = self._unwritten.get(response_id)
        if run is not None and run.identity.is_same(identity):
            await run.record_again(self._store)
            self._unwritten.pop(response_id, None)
