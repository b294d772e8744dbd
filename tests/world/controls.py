"""Broken rules: each control takes one safeguard away, and some world must come to grief over it soon.

If one does not, the worlds do not prove that the safeguard is there. Each is a context manager around a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from drr.backend import Commit, Peek, WorkerRecord
from drr.core.scheduler import Scheduler
from drr.dispatcher import closing, ledger, liveness
from drr.dispatcher.batch import Batch
from drr.dispatcher.liveness import Gone, Liveness
from drr.model import Completion, Header, JobSpec, NodePolicy, Outcome, TenantPath
from drr.worker.state import Hands, Reported
from drr_backends.memory import MemoryBackend, adapter, passes
from drr_backends.memory.store import Store
from tests.world import cast
from tests.world.cast import DispatcherPart
from tests.world.ledger import Ledger
from tests.world.life import Life
from tests.world.network import Link


@contextmanager
def no_fence() -> Iterator[None]:
    """The store takes a commit from anybody, whoever leads and whichever pass it is."""
    with patch.object(adapter, "check_fence", lambda store, commit: None):
        yield


@contextmanager
def lease_by_wall_clock() -> Iterator[None]:
    """A leader judges by its wall clock who lives, and does not mind when that jumps.

    The rule about pauses is taken away as well: it would take a jump for a pause, and be right by chance.
    """

    def clock(part: DispatcherPart, life: Life) -> Life:
        life.monotonic = life.wall  # type: ignore[method-assign]
        return life

    with patch.object(DispatcherPart, "clock", clock), patch.object(liveness, "WATCHFUL", float("inf")):
        yield


@contextmanager
def settle_before_record() -> Iterator[None]:
    """A pass takes two writes: the first settles and frees the slots, the second records what became of the jobs."""
    pending: list[tuple[str, Header, Completion]] = []
    record = passes._record

    def put_off(store: Store, header: Header, completion: Completion, now: float) -> None:
        pending.append((store.leader.token, header, completion))

    async def record_outcomes(self: MemoryBackend, token: str) -> None:
        for of, header, completion in pending:
            if of == token:
                record(self._store, header, completion, self._store.clock.monotonic())
        pending[:] = [item for item in pending if item[0] != token]

    async def commit(self: Link, commit: Commit, peeks: Sequence[Peek] = ()) -> object:
        windows = await self._call("commit", commit, peeks)
        await self._call("record_outcomes", commit.token)
        return windows

    with (
        patch.object(passes, "_record", put_off),
        patch.object(MemoryBackend, "record_outcomes", record_outcomes, create=True),
        patch.object(Link, "commit", commit, create=True),
    ):
        yield


@contextmanager
def release_on_report_only() -> Iterator[None]:
    """A slot is freed by its worker's report and by nothing else."""
    look = Liveness.look

    def look_and_do_nothing(
        self: Liveness, records: Sequence[WorkerRecord], asked: float, now: float
    ) -> tuple[list[Gone], dict[str, str]]:
        _, dead = look(self, records, asked, now)
        return [], dead

    with patch.object(Liveness, "look", look_and_do_nothing):
        yield


@contextmanager
def accounts_forgotten() -> Iterator[None]:
    """A new leader begins with nobody in credit or debt."""

    def restore(self: Scheduler, states: Any) -> None:
        """Leave all as it is."""

    with patch.object(Scheduler, "restore", restore):
        yield


@contextmanager
def weights_forgotten() -> Iterator[None]:
    """Every organisation has the same share."""

    def policies(part: DispatcherPart) -> Mapping[str | TenantPath, NodePolicy]:
        return {name: replace(policy, weight=1.0) for name, policy in part.stage.policies.items()}

    with patch.object(DispatcherPart, "policies", property(policies)):
        yield


@contextmanager
def caps_forgotten() -> Iterator[None]:
    """Nobody has a cap."""

    def policies(part: DispatcherPart) -> Mapping[str | TenantPath, NodePolicy]:
        return {name: replace(policy, hard_cap=None) for name, policy in part.stage.policies.items()}

    with patch.object(DispatcherPart, "policies", property(policies)):
        yield


@contextmanager
def retries_are_new_submits() -> Iterator[None]:
    """A submit that is repeated is another one to the store."""
    numbers = count(1)

    async def submit(self: Link, client: str, call: int, jobs: Sequence[JobSpec]) -> object:
        return await self._call("submit", client, next(numbers), jobs)

    with patch.object(Link, "submit", submit, create=True):
        yield


@contextmanager
def pending_entries_run_again() -> Iterator[None]:
    """A worker that reads its pending entries does not know which of them it has run already."""
    with patch.object(Reported, "__contains__", lambda self, token: False):
        yield


@contextmanager
def one_slot_more() -> Iterator[None]:
    """A worker takes one attempt more than it has slots."""
    room = Hands.room

    def more(self: Hands, pool: str) -> int:
        return room(self, pool) + 1 if self.taking else 0

    with patch.object(Hands, "room", more):
        yield


@contextmanager
def failures_are_free() -> Iterator[None]:
    """An attempt that failed is not in the accounts."""
    book = ledger.book_attempt

    def book_others(batch: Batch, header: Header, outcome: Outcome, held: float, charged: float) -> None:
        if outcome is not Outcome.FAILED:
            book(batch, header, outcome, held, charged)

    with patch.object(closing, "book_attempt", book_others):
        yield


@contextmanager
def failures_are_final() -> Iterator[None]:
    """A job that has failed is not tried again, whatever its policy."""
    with patch.object(closing, "retry_pause", lambda *_: None):
        yield


@contextmanager
def nobody_resigns() -> Iterator[None]:
    """A dispatcher that leaves goes on leading by what the store says."""

    def resign(self: Store, token: str) -> None:
        """Do nothing."""

    with patch.object(Store, "resign", resign):
        yield


@contextmanager
def nothing_may_be_lost() -> Iterator[None]:
    """No rule of drr, but one of the worlds: that a restart of the store may take back what came last."""
    with patch.object(Ledger, "may_be_lost", lambda self, job_id: False):
        yield


@contextmanager
def no_horizon() -> Iterator[None]:
    """An outbox believes at once that the store keeps what it has acknowledged."""
    with patch.object(cast, "HORIZON", 0.0):
        yield


class Control(NamedTuple):
    """A broken rule. ``found``: what is wrong because of it; ``seed``: a world that found it when it was written."""

    broken: Callable[[], AbstractContextManager[None]]
    found: str
    seed: int


CONTROLS: Final[dict[str, Control]] = {
    "no-fence": Control(no_fence, r"a commit under .* was accepted|pass \d+ follows", 9),
    "wall-clock": Control(lease_by_wall_clock, r"was declared dead", 7),
    "settle-first": Control(settle_before_record, r"the outcome of .* is None", 2),
    "report-only": Control(release_on_report_only, r"not everything ended: leases \['", 5),
    "accounts-forgotten": Control(accounts_forgotten, r"a new leader begins with", 1),
    "weights-forgotten": Control(weights_forgotten, r"siblings drifted apart", 0),
    "caps-forgotten": Control(caps_forgotten, r"initech holds 3, its cap is 2", 1),
    "submits-repeated": Control(retries_are_new_submits, r"the submit of \d+ added 2 jobs", 2),
    "pending-again": Control(pending_entries_run_again, r"was run 2 times", 15),
    "one-slot-more": Control(one_slot_more, r"ran \d jobs at once", 1),
    "failures-free": Control(failures_are_free, r"attempts in the accounts", 1),
    "failures-final": Control(failures_are_final, r"ended as failed", 1),
    "nothing-lost": Control(nothing_may_be_lost, r"was acknowledged and is lost", 4),
    "no-horizon": Control(no_horizon, r"was in an outbox and is lost", 1),
    "nobody-resigns": Control(nobody_resigns, r"still leads though everybody has left", 1),
}
