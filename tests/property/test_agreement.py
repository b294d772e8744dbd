"""The Redis adapter, on real servers, agrees with the memory adapter; and a store that is wrong is found out."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase

from drr.backend import Attempt, Commit, Malformed, Peek, Position, Window, WorkerRecord
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import BacklogFull, CommitRefused, JobExists, NotLeader, UnknownLimit
from drr.model import JobSpec, JobState, JobStatus
from drr_backends.memory import MemoryBackend
from drr_backends.memory.checks import check_fence
from drr_backends.memory.passes import apply
from drr_backends.memory.store import Store
from tests.contract.adapters import MemoryHarness, RedisHarness
from tests.property.agreement import run
from tests.property.sides import Side

MUST_HAPPEN = [
    *("submitted", "repeated", "replies read", "dead letters seen", "joined", "refused to join", "beat True"),
    *("beat False", "attempts read", "attempts pending", "loaded", "events read", "lanes announced", "committed"),
    *("settlements", "requeues", "removals", "dispatches", "charges", NotLeader.__name__, CommitRefused.__name__),
    *("postpones", "matures", "revivals", "drops_delayed", "strikes", "stops", UnknownLimit.__name__),
    *(BacklogFull.__name__, JobExists.__name__),
    *(f"seen {state}" for state in JobState),
]

ROUNDS = 12
"""What happens is drawn at random; each thing that must happen does so in at least two rounds of three."""


def fresh() -> str:
    return f"agree-{uuid.uuid4().hex}"


def test_the_redis_adapter_agrees_with_the_memory_adapter(server: EmbeddedServer) -> None:
    happened: Counter[str] = Counter()
    missing = MUST_HAPPEN
    for _ in range(ROUNDS):
        happened += run(
            lambda: (Side(MemoryHarness(fresh())), Side(RedisHarness(server, fresh()))),
            max_examples=40,
            stateful_step_count=30,
        )
        missing = [what for what in MUST_HAPPEN if not happened[what]]
        if not missing:
            break
    # An agreement about nothing is none.
    assert missing == []


# --- stores that are wrong ----------------------------------------------------------------------------


class NoPassNumber(MemoryBackend):
    """Takes any pass of the leader, a repeated one too."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        return await super().commit(replace(commit, pass_number=self._store.leader.passes + 1), peeks)


class NoFence(MemoryBackend):
    """Takes passes of whoever led before."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        return await super().commit(replace(commit, token=self._store.leader.token), peeks)


class HalfCommit(MemoryBackend):
    """Writes the accounts of a pass that it refuses."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        try:
            return await super().commit(commit, peeks)
        except CommitRefused:
            self._store.nodes.update({node: state for node, state in commit.nodes.items() if state is not None})
            raise


class NoHeads(MemoryBackend):
    """Does not compare the heads of lanes, and validates nothing else either."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        check_fence(self._store, commit)
        try:
            apply(self._store, commit)
        except KeyError as error:
            raise CommitRefused(str(error)) from error
        return await self.peek(peeks)


class RequeueToTail(MemoryBackend):
    """Puts returned jobs behind the others."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        await super().commit(commit)
        for requeue in commit.requeues:
            lane = self._store.lanes.get(requeue.lease.header.lane)
            if lane and lane[0].head == replace(
                requeue.lease.header, attempts=requeue.attempts, losses=requeue.losses
            ):
                lane.rotate(-1)
        return await self.peek(peeks)


class NoTrim(MemoryBackend):
    """Keeps news for ever."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        return await super().commit(replace(commit, position=Position()), peeks)


class LostCharges(MemoryBackend):
    """Forgets what running leases were charged."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        charges = {token: self._store.leases.get(token, lease) for token, lease in commit.charges.items()}
        return await super().commit(replace(commit, charges=charges), peeks)


class LostLetters(MemoryBackend):
    """Buries nothing."""

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        settlements = [replace(settlement, bury="") for settlement in commit.settlements]
        return await super().commit(replace(commit, settlements=settlements), peeks)


class NoMemoryOfCalls(MemoryBackend):
    """Does a repeated submit again."""

    async def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        self._store.calls.clear()
        return await super().submit(client, call, jobs)


class AnnouncesProjects(MemoryBackend):
    """Announces a lane only if its whole project was idle."""

    async def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        store = self._store
        before, active = store.announced.last, {(lane.pool, lane.path) for lane in store.lanes}
        ids = await super().submit(client, call, jobs)
        kept = [
            entry
            for _, entry in store.announced.after(before)
            if isinstance(entry, float) or (entry[0].pool, entry[0].path) not in active
        ]
        for _ in range(store.announced.last - before):
            store.announced._items.pop()
            store.announced.last -= 1
        for entry in kept:
            store.announced.append(entry)
        return ids


class PendingByName(MemoryBackend):
    """Gives a new incarnation what was delivered to its predecessor."""

    async def pending_attempts(self, name: str, incarnation: str, pool: str) -> list[Attempt | Malformed]:
        return await super().pending_attempts(name, "i1", pool)


class Resurrection(MemoryBackend):
    """Takes a heartbeat of a worker that was declared dead."""

    async def heartbeat(self, record: WorkerRecord) -> bool:
        if not await super().heartbeat(record) and record.name not in self._store.workers:
            await self.join(record)
        return record.name in self._store.workers


class NoReturnedJobs(MemoryBackend):
    """Looks a returned job up as if only fresh ones waited."""

    async def look_up(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        found = await super().look_up(job_ids)
        return [None if status and status.state == JobState.QUEUED and status.attempt else status for status in found]


class Overreading(MemoryBackend):
    """Gives a worker more than it asked for."""

    async def read_attempts(
        self, name: str, incarnation: str, pool: str, count: int, block: float
    ) -> list[Attempt | Malformed]:
        return await super().read_attempts(name, incarnation, pool, count and count + 1, block)


PLANTED = [
    *(NoPassNumber, NoFence, HalfCommit, NoHeads, RequeueToTail, NoTrim, LostCharges, LostLetters, NoMemoryOfCalls),
    *(AnnouncesProjects, PendingByName, Resurrection, NoReturnedJobs, Overreading),
]


class Planted(MemoryHarness):
    """A store in memory behind handles that do something wrong."""

    def __init__(self, kind: type[MemoryBackend]) -> None:
        self._kind = kind
        self._store = Store(SystemClock())
        super().__init__("agreement")

    def connect(self) -> MemoryBackend:
        return self._kind(self._store, SystemClock())


def find_out(kind: type[MemoryBackend], examples: int = 100) -> None:
    """Let the machine compare such a store with the reference; the same examples every time."""
    run(
        lambda: (Side(MemoryHarness(fresh())), Side(Planted(kind))),
        max_examples=examples,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_bug_is_found_out(kind: type[MemoryBackend]) -> None:
    with pytest.raises(AssertionError):
        find_out(kind)


def test_without_a_bug_there_is_nothing_to_find_out() -> None:
    find_out(MemoryBackend, examples=15)
