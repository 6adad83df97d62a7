"""A backend examined, as tests need it."""

from __future__ import annotations

from collections.abc import Mapping

from antwort.config.settings import BackendSettings
from antwort.doctor.examiner import Examiner, Subject
from antwort.doctor.findings import Examination, Finding, Verdict

PATIENCE = 20.0


async def examined(
    url: str, *, model: str | None = None, settings: BackendSettings | None = None, patience: float = PATIENCE
) -> Examination:
    """All that is found out about the backend there. Raises `OutOfReach`."""
    examiner = Examiner(Subject(name="b", url=url, model=model, settings=settings), timeout=patience)
    async for _ in examiner.findings():
        pass
    return examiner.examination()


def verdicts(examination: Examination) -> dict[str, Verdict]:
    return {finding.probe: finding.verdict for finding in examination.findings}


def by_probe(examination: Examination) -> Mapping[str, Finding]:
    return {finding.probe: finding for finding in examination.findings}
