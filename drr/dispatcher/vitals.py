"""What a dispatcher notes of itself as it goes on, and the `DispatcherHealth` that follows from it.

Only the dispatcher's event loop writes; any thread may ask, since each note is one assignment.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from drr.clock import Clock
from drr.dispatcher.status import StoreStatus
from drr.durability import Caution, Level, Survey
from drr.health import DispatcherHealth, Reason

SHORTEST_SILENCE: Final = 1.0
"""Seconds without an answer of the store that are never held against anybody, however short the leader lease."""
STUCK_AFTER: Final = 120.0
"""Seconds, beyond one leader lease, without an answer or an error of the store after which the loop counts as dead.

Every call of the store ends in time, one way or the other, so a loop that sees neither waits for what never comes.
Long, since to load a large state is many calls, of which only the end is noted.
"""
DETAIL_LIMIT: Final = 300


class State(StrEnum):
    """What a dispatcher does."""

    NEW = "new"
    STANDING_BY = "standing by"
    LOADING = "loading"
    LEADING = "leading"
    RECOVERING = "recovering"
    """After an error of the store: it drops what it knows and starts anew."""
    STOPPED = "stopped"


_REASONS: Final = {
    State.NEW: Reason.NOT_STARTED,
    State.LOADING: Reason.LOADING,
    State.RECOVERING: Reason.STORE_LOST,
    State.STOPPED: Reason.STOPPED,
}


class Vitals:
    """The notes. ``tick``: seconds within which an event loop that turns calls `turned` again."""

    def __init__(self, clock: Clock, name: str, leader_lease: float, tick: float) -> None:
        self._clock = clock
        self._name = name
        self._silence = max(leader_lease, SHORTEST_SILENCE)
        self._stuck_after = leader_lease + STUCK_AFTER
        self.tick = tick
        self._state = State.NEW
        self._error = ""
        self.survey: Survey | None = None
        """What the store said of itself when it was last asked; ``None`` before."""
        self._leader = ""
        self._turned_at: float | None = None
        self._answered_at: float | None = None
        self._heard_at: float | None = None
        """When the store answered or failed last."""
        self._committed_at: float | None = None

    @property
    def leader(self) -> str:
        """Token of the leader as last seen."""
        return self._leader

    def surveyed(self, survey: Survey) -> set[Caution]:
        """The store said what it keeps; return the warnings that are new."""
        before = set(self.cautions)
        self.survey = survey
        return set(self.cautions) - before

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What is wrong with the store's settings, as far as it has told."""
        return () if self.survey is None else tuple(remark.caution for remark in self.survey.warnings)

    def store(self) -> StoreStatus:
        """Return what is known of the store, for the status."""
        if self.survey is None:
            return StoreStatus()
        cautions = {remark.caution.value: remark.text for remark in self.survey.warnings}
        return StoreStatus(self.survey.server, self.survey.level.value, cautions)

    def committed_at(self) -> float | None:
        """Return when the last commit was made, by the wall clock as it stands now."""
        since = _since(self._committed_at, self._clock.monotonic())
        return None if since is None else self._clock.wall() - since

    def turned(self) -> None:
        """The event loop turns."""
        self._turned_at = self._clock.monotonic()

    def answered(self) -> None:
        """The store answered a call."""
        self._answered_at = self._heard_at = self._clock.monotonic()

    def committed(self) -> None:
        """The store took a commit."""
        self.answered()
        self._committed_at = self._answered_at

    def stands_by(self, leader: str) -> None:
        """The store answered that ``leader`` leads, which is somebody else or nobody."""
        self._leader = leader
        self._state = State.STANDING_BY
        self.answered()

    def elected(self, token: str) -> None:
        """It was elected and begins to load."""
        self._leader = token
        self._state = State.LOADING
        self.answered()

    def leads(self) -> None:
        """It has loaded and leads."""
        self._state = State.LEADING
        self.answered()

    def failed(self, error: Exception) -> None:
        """A call of the store failed."""
        self._error = f"{type(error).__name__}: {error}"[:DETAIL_LIMIT]
        self._state = State.RECOVERING
        self._heard_at = self._clock.monotonic()

    def stopped(self) -> None:
        """The loop has ended, whatever ended it."""
        self._state = State.STOPPED

    def health(self, patience: float) -> DispatcherHealth:
        """Return what follows from the notes now; see `drr.dispatcher.Dispatcher.health`."""
        now, state = self._clock.monotonic(), self._state
        answered, committed = _since(self._answered_at, now), _since(self._committed_at, now)
        turned = _since(self._turned_at, now)
        blocked = 0.0
        if turned is not None and state is not State.STOPPED and turned > 2 * self.tick:
            blocked = turned
        reason = _REASONS.get(state, Reason.NONE)
        if reason is Reason.NONE and (answered is None or answered > self._silence):
            reason = Reason.STORE_SILENT
        heard = _since(self._heard_at, now)
        stuck = state is not State.STOPPED and heard is not None and heard > self._stuck_after
        if stuck:
            reason = Reason.STUCK
        if blocked > self._silence:
            reason = Reason.LOOP_BLOCKED
        return DispatcherHealth(
            role="dispatcher",
            name=self._name,
            state=state.value,
            live=not (state is State.STOPPED or stuck) and blocked <= patience,
            ready=reason is Reason.NONE,
            reason=reason,
            detail=self._error if reason is Reason.STORE_LOST else "",
            blocked=blocked,
            leader=self._leader,
            answered=answered,
            committed=committed,
            durability=Level.UNKNOWN if self.survey is None else self.survey.level,
            cautions=self.cautions,
        )


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)
