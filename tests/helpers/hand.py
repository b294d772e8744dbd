"""A dispatcher without fairness: the least that moves jobs from lanes to workers and settles what they report.

For tests of clients and workers. It leads, dispatches heads of lanes first in first out while workers have slots,
and keeps every event it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

import anyio

from drr.backend import Backend, Commit, Dispatch, Event, EventKind, Peek, Requeue, Settlement
from drr.clock import Clock
from drr.model import Completion, Header, JobState, Lane, Lease

STATES = {
    EventKind.SUCCEEDED: JobState.SUCCEEDED,
    EventKind.FAILED: JobState.FAILED,
    EventKind.TIMED_OUT: JobState.FAILED,
    EventKind.CANCELLED: JobState.CANCELLED,
}


class HandDispatcher:
    """Run `serve` as a task, or call `turn` by hand. ``backend`` stays the caller's to close."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend = backend
        self.clock = clock
        self.events: list[Event] = []
        self.leases: dict[str, Lease] = {}
        self.ended: dict[str, str] = {}
        self.refused: list[Event] = []
        """Events of tokens that were no lease any more."""
        self._tokens = count(1)
        self._lanes: dict[Lane, None] = {}
        self._turned = anyio.Event()

    async def start(self) -> None:
        """Prepare the store and lead, with what is on record of an earlier leader."""
        await self.backend.prepare()
        found = await self.backend.leader()
        epoch = int(found.token.partition(":")[0] or 0) + 1
        self._token = f"{epoch}:hand"
        assert await self.backend.elect(found.token, self._token)
        snapshot = await self.backend.load(self._token)
        self._position, self._passes = snapshot.position, 0
        self._lanes = dict.fromkeys(snapshot.lanes)
        self.leases = {lease.token: lease for lease in snapshot.leases}

    async def serve(self) -> None:
        """Start, then take turns for ever."""
        await self.start()
        while True:
            await self.turn(block=1.0)
            self._turned.set()

    async def turn(self, block: float = 0.0) -> None:
        """Take one batch of news, apply it, dispatch."""
        facts = await self.backend.receive(self._position, block)
        self._position = facts.position
        self._lanes.update(dict.fromkeys(lane for lane, _ in facts.lanes))
        events = [event for event in facts.events if isinstance(event, Event)]
        self.events += events
        settlements, requeues = self._apply(events)
        if settlements or requeues:
            await self._commit(settlements=settlements, requeues=requeues)
        await self._dispatch()

    async def forget(self, *workers: str) -> None:
        """Declare workers dead: their leases are requeued and their records go."""
        records = {record.name: record for record in await self.backend.workers() if record.name in workers}
        held = {token for record in records.values() for token in record.held}
        lost = [self.leases.pop(token) for token in held if token in self.leases]
        self._lanes.update(dict.fromkeys(lease.header.lane for lease in lost))
        await self._commit(
            requeues=[Requeue(lease, lease.attempt, lease.header.losses + 1) for lease in lost],
            forget_workers={name: record.incarnation for name, record in records.items()},
        )

    async def stop(self, *job_ids: str) -> None:
        """Tell the workers to stop these jobs, which run."""
        marked = {
            token: replace(lease, cancelled=True)
            for token, lease in self.leases.items()
            if lease.header.job_id in job_ids
        }
        self.leases.update(marked)
        await self._commit(charges=marked, stops=list(marked))

    def _apply(self, events: Iterable[Event]) -> tuple[list[Settlement], list[Requeue]]:
        settlements, requeues = [], []
        for event in events:
            lease = self.leases.pop(event.token, None)
            if lease is None:
                self.refused.append(event)
            elif event.kind is EventKind.RETURNED:
                requeues.append(Requeue(lease, lease.attempt, lease.header.losses + 1))
                self._lanes[lease.header.lane] = None
            else:
                self.ended[lease.header.job_id] = event.kind.value
                done = Completion(
                    STATES[event.kind], lease.attempt, self.clock.wall(), event.seconds, event.value, event.error
                )
                settlements.append(Settlement(lease, done))
        return settlements, requeues

    async def _dispatch(self) -> None:
        while True:
            records = await self.backend.workers()
            slots = sum(sum(record.slots.values()) for record in records if not record.draining)
            room = min(slots - len(self.leases), 1000)
            heads: list[Header] = []
            for lane in list(self._lanes):
                if len(heads) >= room:
                    break
                [window] = await self.backend.peek([Peek(lane, 0, room - len(heads))])
                heads += [entry for entry in window.entries if isinstance(entry, Header)]
                if not window.length:
                    del self._lanes[lane]
            if not heads:
                return
            now = self.clock.wall()
            leases = [
                Lease(f"t{next(self._tokens)}-{self._token}", head, head.attempts + 1, now, 1.0) for head in heads
            ]
            await self._commit(dispatches=[Dispatch(lease.header, lease) for lease in leases])
            self.leases.update((lease.token, lease) for lease in leases)

    async def _commit(self, **fields: object) -> None:
        self._passes += 1
        await self.backend.commit(Commit(self._token, self._passes, self._position, **fields))  # type: ignore[arg-type]

    async def until(self, done: Callable[[], object]) -> None:
        """Return when ``done()`` is true after some turn of `serve`; for tests on the real clock."""
        while not done():
            self._turned = anyio.Event()
            await self._turned.wait()
