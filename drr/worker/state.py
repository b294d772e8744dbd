"""What a worker has in its hands: a synchronous state machine, no I/O, no clock, no loop.

Rules
    - An attempt is *held* from the moment it was read until the store acknowledged its final event. The
      heartbeat lists exactly the held tokens, so the dispatcher never sees a gap in between.
    - An attempt makes its slot *busy* until its handler is gone. A thread cannot be killed: its slot stays busy
      though the attempt may be void long since. ``room`` is what is not busy, so handlers never outnumber slots.
    - Every attempt that is taken ends in exactly one event, unless it became *void*: the store refused this
      incarnation, so its tokens mean nothing and its results are dropped.
    - What the store acknowledged stays pending in the pool's stream until the dispatcher settles it. So after
      a reconnect the pending list shows attempts that ran already: `Reported` remembers them, and their events
      are sent again (the dispatcher ignores the second) and never run again.
    - An attempt that arrives when nothing may be taken is handed back at once.

Threads: the heartbeat's thread calls `record` and `untold_since` and writes ``refused``, ``lapsed`` and ``blocks``;
everything else belongs to the worker's loop. One lock guards what both sides see; it is taken once per batch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Mapping
from typing import Final

import anyio

from drr.backend import ITEM_LIMIT, Attempt, Event, EventKind, WorkerRecord
from drr.worker.tasks import AnyTask

REPORT_BYTES: Final = 1024 * 1024
"""Most bytes of results in one report, apart from a single larger one."""
REMEMBERED_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of results kept after their acknowledgement, in case the store forgets what it acknowledged."""
REMEMBERED_EVENTS: Final = 4096
"""Acknowledged attempts that are remembered beyond four per slot."""


class Holding:
    """One attempt in hand. ``scope`` cancels its handler alone, if it runs on the loop.

    ``cancelled``: its job was cancelled; ``expired``: it is over its timeout. What came first stands.
    """

    __slots__ = ("attempt", "cancelled", "ended", "expired", "pool", "scope", "taken_at", "task", "timeout", "void")

    def __init__(self, attempt: Attempt, pool: str, taken_at: float) -> None:
        self.attempt = attempt
        self.pool = pool
        self.taken_at = taken_at
        self.task: AnyTask | None = None
        self.timeout: float | None = None
        self.scope: anyio.CancelScope | None = None
        self.expired = False
        self.cancelled = False
        self.ended = False
        self.void = False


class Reported:
    """Events that were acknowledged, by token: bounded in number, and in the bytes of their results.

    A token outlives the value of its event: then it is known that it ran, and no more.
    """

    def __init__(self, events: int, size: int = REMEMBERED_BYTES) -> None:
        self._limit = events
        self._size_limit = size
        self._events: OrderedDict[str, Event | None] = OrderedDict()
        self._weights: OrderedDict[str, int] = OrderedDict()
        self._size = 0

    def add(self, event: Event) -> None:
        """Remember ``event``; the oldest go."""
        self._events[event.token] = event
        if event.value:
            self._weights[event.token] = len(event.value)
            self._size += len(event.value)
        while self._size > self._size_limit:
            token, weight = self._weights.popitem(last=False)
            self._size -= weight
            self._events[token] = None
        while len(self._events) > self._limit:
            token, _ = self._events.popitem(last=False)
            self._size -= self._weights.pop(token, 0)

    def __contains__(self, token: object) -> bool:
        return token in self._events

    def recall(self, token: str) -> Event | None:
        """Return the event of ``token`` if it is still kept whole."""
        return self._events.get(token)

    def clear(self) -> None:
        """Forget everything."""
        self._events.clear()
        self._weights.clear()
        self._size = 0


class Hands:
    """The state of one worker over all its incarnations. See the rules at the top of this file."""

    def __init__(self, name: str, slots: Mapping[str, int], version: str = "") -> None:
        self.name = name
        self.slots = dict(slots)
        self.version = version
        self.incarnation = ""
        self.refused = ""
        """The incarnation that the store does not know any more, as the heartbeat learned."""
        self.lapsed = False
        """Whether no heartbeat got through for a whole lease, as of now."""
        self.blocks = 0
        """How often the worker's event loop was blocked for too long, over all incarnations."""
        self.open = False
        """Whether a term is on: see `drr.worker.shift`."""
        self.stopping = False
        self.giving_back = False
        self._lock = threading.Lock()
        self._held: dict[str, Holding] = {}
        self._busy = dict.fromkeys(self.slots, 0)
        self._ghosts = dict.fromkeys(self.slots, 0)
        """Slots that handlers of void attempts still occupy, by pool; part of ``_busy``."""
        self._outbox: deque[Event] = deque()
        self._reported = Reported(4 * sum(self.slots.values()) + REMEMBERED_EVENTS)

    # --- who we are ---------------------------------------------------------------------------------

    def begin(self, incarnation: str) -> None:
        """Become a new incarnation, which has just been registered."""
        self.incarnation = incarnation
        self.lapsed = False

    def record(self, incarnation: str | None = None) -> WorkerRecord:
        """Return the heartbeat to send now, or the record to join with. May be called from another thread.

        Slots that are still occupied by handlers of void attempts are left out: nothing can start there.
        """
        with self._lock:
            held = tuple(self._held)
            slots = {pool: count - self._ghosts[pool] for pool, count in self.slots.items()}
        return WorkerRecord(
            name=self.name,
            incarnation=self.incarnation if incarnation is None else incarnation,
            slots=slots,
            held=held,
            draining=self.stopping,
            version=self.version,
            blocks=self.blocks,
        )

    def untold_since(self, told: Container[str]) -> float | None:
        """Return when the oldest held attempt that is not in ``told`` was taken. May be called from a thread."""
        with self._lock:
            for token, holding in self._held.items():
                if token not in told:
                    return holding.taken_at
        return None

    @property
    def is_refused(self) -> bool:
        """Whether the present incarnation was refused."""
        return bool(self.incarnation) and self.refused == self.incarnation

    # --- taking -------------------------------------------------------------------------------------

    @property
    def taking(self) -> bool:
        """Whether new attempts may be run."""
        return self.open and not (self.stopping or self.giving_back or self.lapsed or self.is_refused)

    def room(self, pool: str) -> int:
        """Return how many attempts of ``pool`` can be started now."""
        return self.slots[pool] - self._busy[pool] if self.taking else 0

    def take(self, pool: str, attempts: Iterable[Attempt], now: float) -> list[Holding]:
        """Take what was read off ``pool``'s stream; return what is to be run.

        Known attempts are passed over: what runs goes on, and what ended is in the outbox or goes there again.
        What cannot be run for want of a slot or because nothing may be taken is handed back.
        """
        started: list[Holding] = []
        room = self.room(pool)
        with self._lock:
            for attempt in attempts:
                token = attempt.token
                if token in self._held:
                    continue
                if token in self._reported:
                    event = self._reported.recall(token)
                    if event is not None:
                        self._outbox.append(event)
                    continue
                holding = Holding(attempt, pool, now)
                self._held[token] = holding
                if len(started) < room:
                    started.append(holding)
                else:
                    holding.ended = True
                    self._outbox.append(self.event(holding, EventKind.RETURNED, now))
        self._busy[pool] += len(started)
        return started

    # --- ending -------------------------------------------------------------------------------------

    def event(
        self,
        holding: Holding,
        kind: EventKind,
        now: float,
        value: bytes = b"",
        error: str = "",
        retry_after: float | None = None,
    ) -> Event:
        """Return the final event of an attempt that ends now."""
        return Event(
            token=holding.attempt.token,
            kind=kind,
            worker=self.name,
            seconds=max(0.0, now - holding.taken_at),
            value=value,
            error=error,
            retry_after=retry_after,
        )

    def holding(self, token: str) -> Holding | None:
        """Return the attempt with this token if it is in hand and has not ended."""
        holding = self._held.get(token)
        return holding if holding is not None and not holding.ended else None

    def finish(self, holding: Holding, event: Event) -> None:
        """The handler is gone: its slot is free, and its event is to be sent unless the attempt is void."""
        assert not holding.ended, "an attempt ends once"
        holding.ended = True
        self._busy[holding.pool] -= 1
        if not holding.void:
            self._outbox.append(event)
            return
        with self._lock:
            self._ghosts[holding.pool] -= 1

    def batch(self) -> list[Event]:
        """Return the oldest unsent events, as many as fit one report. They stay until `acknowledge`."""
        if len(self._outbox) == 1:
            return [self._outbox[0]]
        events: list[Event] = []
        size = 0
        for event in self._outbox:
            size += len(event.value)
            if events and (size > REPORT_BYTES or len(events) == ITEM_LIMIT):
                break
            events.append(event)
        return events

    def acknowledge(self, events: Iterable[Event]) -> None:
        """The store has these events (from `batch`): their attempts leave the hands."""
        with self._lock:
            for event in events:
                # Events that became void while their report was on its way are gone from the outbox already.
                if self._outbox and self._outbox[0] is event:
                    self._outbox.popleft()
                    self._held.pop(event.token, None)
                    self._reported.add(event)

    def void(self) -> None:
        """The tokens in hand mean nothing any more: drop their events, unsent ones included."""
        with self._lock:
            for holding in self._held.values():
                holding.void = True
                if not holding.ended:
                    self._ghosts[holding.pool] += 1
            self._held.clear()
            self._outbox.clear()
            self._reported.clear()

    # --- what is left -------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """How many events wait for their acknowledgement."""
        return len(self._outbox)

    @property
    def busy(self) -> int:
        """How many slots are occupied by a handler."""
        return sum(self._busy.values())

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is left to be reported."""
        return not self._outbox and not any(self._busy.values())

    def running(self) -> list[Holding]:
        """Return the attempts whose handlers run."""
        with self._lock:
            return [holding for holding in self._held.values() if not holding.ended]
