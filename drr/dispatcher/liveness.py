"""Who lives, who holds what, and which attempts are lost: by renewal counters over the leader's own clock.

Rules of this file: no I/O, no clock; ``now`` is monotonic. Neither the store's clock nor the workers' count.

Theory of operation
    A worker is dead when its counter stood still for one *lease* (a length of time) while we were watching.
    A hold (a live lease of an attempt) was *seen* when it was dispatched or loaded, and whenever a fresh
    heartbeat of its worker listed it; not seen for one lease, it is lost or was never claimed. So both
    questions are one comparison, and both begin anew after a takeover, since a new `Liveness` is made then.

    "While we were watching" matters: if more than half a lease lies between two looks (the process was
    stopped, the store did not answer), what was not seen proves nothing, and everybody gets one full lease.

Which unclaimed attempt counts as a loss
    Heartbeats are rare, so an attempt that kills its worker at once was never listed by anybody. If it did
    not count, it could kill workers for ever without becoming poison. So an unclaimed attempt counts as lost
    if some worker of its pool fell silent, died or was replaced after the dispatch, with a slot free as far
    as was known: that one will have swallowed it, the oldest first and no more than it had slots. If there
    is none, nobody had the attempt, and its job is not blamed.

Leases may differ from pool to pool: an attempt is judged by its pool's, a worker by the longest of its pools'.

Cancelled attempts
    From the cancellation on no heartbeat extends a hold: it *lapses* one lease later, whatever is listed. A worker
    that still lists the attempt then is busy with a *ghost*, and the slot is withheld from its pool until the
    worker reports it, no longer lists it, or is gone. (A new leader does not know of ghosts.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from drr.backend import WorkerRecord
from drr.model import Lease

WATCHFUL: Final = 0.5
"""Longest gap between two looks, in leases, over which what was not seen still counts."""
BEATS_PER_LEASE: Final = 3
"""A pool's lease counts as at least so many heartbeats, or living workers would lose what they hold."""
MISSED_BEATS: Final = 2
"""Heartbeats missed after which a worker is suspect: its free slots are given no new attempts."""


class Cause(Enum):
    """Why an attempt goes back to its lane without a report."""

    WORKER_DEAD = "its worker died"
    WORKER_REPLACED = "its worker was restarted"
    WORKER_LEFT = "its worker left without it"
    DROPPED = "its worker stopped listing it"
    SWALLOWED = "no worker claimed it, and one that may have had it died"
    UNCLAIMED = "no worker claimed it"
    HANDED_BACK = "its worker handed it back"

    @property
    def counts(self) -> bool:
        """Whether the job is blamed: enough of these make it poison."""
        return self in _BLAMED


_BLAMED = frozenset({Cause.WORKER_DEAD, Cause.WORKER_REPLACED, Cause.DROPPED, Cause.SWALLOWED})


class Hold:
    """A live lease under watch. ``since``, ``seen``: monotonic; ``worker``, ``incarnation``: who lists it, if any.

    ``lapses``: of a cancelled one, when it ends at the latest.
    """

    __slots__ = ("incarnation", "lapses", "lease", "pool", "seen", "since", "worker")

    def __init__(self, lease: Lease, since: float, seen: float) -> None:
        self.lease = lease
        self.pool = lease.header.lane.pool
        self.since = since
        self.seen = seen
        self.lapses: float | None = None
        self.worker = ""
        self.incarnation = ""


class Gone(NamedTuple):
    """An attempt that is to go back to its lane, and why."""

    token: str
    cause: Cause


class Capacity(NamedTuple):
    """A pool's slots: live ones (busy ones of draining workers included), and those not to be filled now."""

    slots: int
    withheld: int


class _Watched:
    """A worker. ``beat_at``: when its counter was last seen to move; ``claims``: its holds by pool.

    ``blamed``: unclaimed attempts by pool that it is taken to have swallowed since. ``ghosts``: pools by token of
    ended attempts that it is still busy with.
    """

    __slots__ = ("beat_at", "blamed", "claims", "ghosts", "record")

    def __init__(self, record: WorkerRecord, now: float) -> None:
        self.record = record
        self.beat_at = now
        self.claims: dict[str, int] = {}
        self.blamed: dict[str, int] = {}
        self.ghosts: dict[str, str] = {}

    def take_blame(self, pool: str) -> bool:
        """Return whether it may have swallowed (another) attempt of ``pool``."""
        blamed = self.blamed.get(pool, 0)
        if self.claims.get(pool, 0) + blamed >= self.record.slots.get(pool, 0):
            return False
        self.blamed[pool] = blamed + 1
        return True


class Liveness:
    """The live workers and holds of one leader."""

    def __init__(
        self, lease: float, heartbeat: float, now: float, lease_of: Callable[[str], float | None] | None = None
    ) -> None:
        """``lease``, and the longest ``heartbeat`` interval of any worker, in seconds; ``lease_of``: a pool's own."""
        self.holds: dict[str, Hold] = {}
        self.claimed: list[Hold] = []
        """Holds that got a worker since this list was last taken."""
        self.changed = True
        """Whether `capacities` may have changed; who acts on that lowers it."""
        self._lease = lease
        self._lease_of = lease_of
        self._leases: dict[str, float] = {}
        self._least = heartbeat * BEATS_PER_LEASE
        self._lapsing: dict[str, Hold] = {}
        self._suspect_after = heartbeat * MISSED_BEATS
        self._looked_at = now
        self._workers: dict[str, _Watched] = {}
        self._casualties: list[tuple[float, _Watched]] = []
        """Workers found dead or replaced within the last two leases, and when."""

    @property
    def workers(self) -> Mapping[str, WorkerRecord]:
        """The records of all live workers, by name."""
        return {name: watched.record for name, watched in self._workers.items()}

    # --- leases ---------------------------------------------------------------------------------------

    def lease_of(self, pool: str) -> float:
        """Return the seconds of silence after which an attempt of a pool is lost."""
        found = self._leases.get(pool)
        if found is None:
            own = self._lease_of(pool) if self._lease_of is not None else None
            found = self._leases[pool] = self._lease if own is None else max(own, self._least)
        return found

    def leases_changed(self) -> None:
        """Pools may have other leases from now on."""
        self._leases.clear()

    @property
    def shortest_lease(self) -> float:
        """The shortest lease of any pool that was asked for: how often to look follows from it."""
        return min(self._leases.values(), default=self._lease)

    def _lease_of_worker(self, watched: _Watched) -> float:
        pools = [*watched.record.slots, *(pool for pool, claims in watched.claims.items() if claims)]
        return max(map(self.lease_of, pools), default=self._lease)

    # --- holds ----------------------------------------------------------------------------------------

    def add(self, hold: Hold) -> None:
        """Watch the lease of a new attempt."""
        self.holds[hold.lease.token] = hold

    def remove(self, token: str, *, ghost: bool = False) -> Hold | None:
        """Stop watching a lease that ends; ``None`` if it is not live (any more).

        ``ghost``: if a worker lists it, its slot is withheld until the worker no longer does.
        """
        hold = self.holds.pop(token, None)
        if hold is not None:
            self._lapsing.pop(token, None)
            if hold.worker:
                if ghost and (watched := self._workers.get(hold.worker)) is not None and self._is_claimed(hold):
                    watched.ghosts[token] = hold.pool
                    self.changed = True
                self._unclaim(hold)
        return hold

    def cancel(self, hold: Hold, now: float) -> None:
        """A hold's job was cancelled: it lapses one lease from ``now``."""
        hold.lapses = now + self.lease_of(hold.pool)
        self._lapsing[hold.lease.token] = hold

    def lapsed(self, now: float) -> list[str]:
        """Return the cancelled attempts whose time is over."""
        return [token for token, hold in self._lapsing.items() if hold.lapses is not None and hold.lapses <= now]

    @property
    def next_lapse(self) -> float | None:
        """When the first of the cancelled attempts lapses."""
        return next((hold.lapses for hold in self._lapsing.values()), None)

    def forget_ghost(self, token: str) -> None:
        """A worker has reported an attempt that had ended before: the slot is free."""
        for watched in self._workers.values():
            if watched.ghosts.pop(token, None) is not None:
                self.changed = True

    def _unclaim(self, hold: Hold) -> None:
        watched = self._workers.get(hold.worker)
        if watched is not None and watched.record.incarnation == hold.incarnation:
            watched.claims[hold.pool] -= 1
            self.changed |= watched.record.draining

    # --- looks ----------------------------------------------------------------------------------------

    def look(self, records: Sequence[WorkerRecord], asked: float, now: float) -> tuple[list[Gone], dict[str, str]]:
        """Take in all workers' records, asked for at ``asked`` and here at ``now``.

        Returns the attempts that are gone, and the dead workers (name to incarnation) to be forgotten.
        """
        if now - self._looked_at > self.shortest_lease * WATCHFUL:
            self._start_anew(now)
        self._looked_at = now
        self.changed = True
        gone: list[Gone] = []
        present = set()
        for record in records:
            present.add(record.name)
            self._meet(record, now, gone)
        for name in [name for name in self._workers if name not in present]:
            self._part(name, Cause.WORKER_LEFT, gone)
        dead = self._bury_silent(asked, now, gone)
        self._find_unseen(asked, {item.token for item in gone}, gone)
        return gone, dead

    def _start_anew(self, now: float) -> None:
        for watched in self._workers.values():
            watched.beat_at = now
        for hold in self.holds.values():
            hold.seen = now

    def _meet(self, record: WorkerRecord, now: float, gone: list[Gone]) -> None:
        watched = self._workers.get(record.name)
        if watched is not None and watched.record.incarnation != record.incarnation:
            self._casualties.append((now, watched))
            self._part(record.name, Cause.WORKER_REPLACED, gone)
            watched = None
        if watched is None:
            watched = self._workers[record.name] = _Watched(record, now)
        elif record.renewals == watched.record.renewals:
            watched.record = record
            return
        watched.record = record
        watched.beat_at = now
        watched.blamed.clear()
        if watched.ghosts:
            watched.ghosts = {token: watched.ghosts[token] for token in record.held if token in watched.ghosts}
        self._claim(watched, record.held, now)

    def _claim(self, watched: _Watched, tokens: Iterable[str], now: float) -> None:
        record = watched.record
        for token in tokens:
            hold = self.holds.get(token)
            if hold is None:
                continue
            if hold.incarnation != record.incarnation or hold.worker != record.name:
                if self._is_claimed(hold):
                    continue  # a live worker has it; who else claims it is mistaken
                hold.worker, hold.incarnation = record.name, record.incarnation
                watched.claims[hold.pool] = watched.claims.get(hold.pool, 0) + 1
                self.claimed.append(hold)
            hold.seen = now

    def _is_claimed(self, hold: Hold) -> bool:
        watched = self._workers.get(hold.worker)
        return watched is not None and watched.record.incarnation == hold.incarnation

    def _part(self, name: str, cause: Cause, gone: list[Gone]) -> None:
        watched = self._workers.pop(name)
        if any(watched.claims.values()):
            gone.extend(Gone(token, cause) for token, hold in self.holds.items() if self._is_of(hold, watched))

    @staticmethod
    def _is_of(hold: Hold, watched: _Watched) -> bool:
        return hold.worker == watched.record.name and hold.incarnation == watched.record.incarnation

    def _bury_silent(self, asked: float, now: float, gone: list[Gone]) -> dict[str, str]:
        dead = {}
        for name, watched in list(self._workers.items()):
            if asked - watched.beat_at >= self._lease_of_worker(watched):
                dead[name] = watched.record.incarnation
                self._casualties.append((now, watched))
                self._part(name, Cause.WORKER_DEAD, gone)
        return dead

    def _find_unseen(self, asked: float, known: set[str], gone: list[Gone]) -> None:
        for pool in {hold.pool for hold in self.holds.values()}:
            self.lease_of(pool)
        longest = max(self._leases.values(), default=self._lease)
        self._casualties = [casualty for casualty in self._casualties if casualty[0] > asked - 2 * longest]
        for token, hold in self.holds.items():
            if hold.seen <= asked - self._leases[hold.pool] and token not in known:
                gone.append(Gone(token, self._cause_of_silence(hold, asked)))

    def _cause_of_silence(self, hold: Hold, asked: float) -> Cause:
        watched = self._workers.get(hold.worker)
        if watched is not None and asked - watched.beat_at >= self._leases[hold.pool]:
            return Cause.WORKER_DEAD  # as far as this pool's lease goes
        if hold.worker:
            return Cause.DROPPED
        for at, watched in self._casualties:
            if at >= hold.seen and watched.take_blame(hold.pool):
                return Cause.SWALLOWED
        for watched in self._workers.values():
            if asked - watched.beat_at > self._suspect_after and watched.take_blame(hold.pool):
                return Cause.SWALLOWED
        return Cause.UNCLAIMED

    # --- capacity -------------------------------------------------------------------------------------

    def capacities(self, now: float) -> dict[str, Capacity]:
        """Return every pool's slots.

        A draining worker counts with the slots it still has busy. A slot that is busy with a
        ghost is withheld. A worker that missed two beats
        counts in full, but its free slots are withheld: what is sent there may be lost.
        """
        found: dict[str, Capacity] = {}
        for watched in self._workers.values():
            record = watched.record
            suspect = now - watched.beat_at > self._suspect_after
            for pool, slots in record.slots.items():
                busy = watched.claims.get(pool, 0)
                live = busy if record.draining else slots
                haunted = sum(1 for of in watched.ghosts.values() if of == pool) if watched.ghosts else 0
                live = min(slots, live + haunted) if record.draining else live
                withheld = max(0, live - busy) if suspect else min(haunted, max(0, live - busy))
                old = found.get(pool, _NO_CAPACITY)
                found[pool] = Capacity(old.slots + live, old.withheld + withheld)
        return found


_NO_CAPACITY = Capacity(0, 0)
