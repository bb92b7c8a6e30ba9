"""What the ledger of a batch does with lines that another pass may have submitted, and with odd answers."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.batch.rows.batch_lines import BatchLine
from millstream.gateway.batches.runner.finished_rows import FinishedRow
from millstream.gateway.batches.runner.store_ledger import StoreLedger
from millstream.gateway.cpu_executor import UnexpectedError
from millstream.openai.api_endpoint import ApiEndpoint

ROW = BatchLine(7, "r7", ApiEndpoint.CHAT, "default", "d7")


class Stubs:
    """Of the gateway: they note what they are asked for."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.added: list[object] = []
        self.fails = False

    async def cancel_many(self, job_ids: Iterable[str]) -> None:
        self.cancelled += job_ids

    async def add(self, row: object) -> None:
        self.added.append(row)

    async def run(self, tenant: str, size: int, *work: Any) -> FinishedRow:
        if self.fails:
            raise UnexpectedError("KeyError")
        return FinishedRow.__new__(FinishedRow)

    def ledger(self, *, resumed: bool) -> StoreLedger:
        batch: Any = SimpleNamespace(tenant="", own_ids=lambda line, prompts: [f"b-{line}"])
        own: Any = self
        return StoreLedger(batch, own, {"default": own}, own, own, resumed=resumed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("resumed", "cancelled"), [(True, ["b-7"]), (False, [])])
async def test_jobs_of_a_pass_before_are_cancelled(resumed: bool, cancelled: list[str]) -> None:
    """Their line has an equal one's answer now."""
    stubs = Stubs()
    answer: Any = SimpleNamespace(size=1)
    assert await stubs.ledger(resumed=resumed).reuse(ROW, answer)
    assert (stubs.cancelled, len(stubs.added)) == (cancelled, 1)


async def test_an_answer_that_makes_no_row_ends_no_run() -> None:
    stubs = Stubs()
    stubs.fails = True
    answer: Any = SimpleNamespace(size=1)
    assert not await stubs.ledger(resumed=True).reuse(ROW, answer)
    assert not stubs.added
