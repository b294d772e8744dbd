"""How a worker is: the `WorkerHealth` that follows from what it has in hand and from its heart.

Only reads, single attributes each, so it may be asked from any thread.
"""

from __future__ import annotations

from drr.clock import Clock
from drr.health import Reason, WorkerHealth
from drr.worker.heart import Heart
from drr.worker.options import Options
from drr.worker.state import Hands


class Examiner:
    """Examines one worker, before, during and after its run."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._hands: Hands | None = None
        self._heart: Heart | None = None
        self._ended = False

    def began(self, hands: Hands, heart: Heart) -> None:
        """A run has begun."""
        self._hands, self._heart, self._ended = hands, heart, False

    def ended(self) -> None:
        """The run is over."""
        self._ended = True

    def health(self, patience: float) -> WorkerHealth:
        """Return what follows now; see `drr.worker.Worker.health`."""
        hands, heart = self._hands, self._heart
        state, reason, detail = self._state(hands)
        blocked = 0.0 if heart is None or self._ended else heart.blocked
        dead = heart is not None and heart.ended and not self._ended
        if blocked > self._options.blocked_after:
            reason, detail = Reason.LOOP_BLOCKED, "a handler computes without awaiting; the log names it"
        if dead:
            reason, detail = Reason.HEART_STOPPED, "the log says why"
        beaten_at = None if heart is None else heart.beaten_at
        return WorkerHealth(
            role="worker",
            name=self._options.name,
            state=state,
            live=not (self._ended or dead) and blocked <= patience,
            ready=reason is Reason.NONE,
            reason=reason,
            detail=detail,
            blocked=blocked,
            beaten=None if beaten_at is None else max(0.0, self._clock.monotonic() - beaten_at),
            running=0 if hands is None else hands.busy,
            blocks=0 if hands is None else hands.blocks,
        )

    def _state(self, hands: Hands | None) -> tuple[str, Reason, str]:
        """Return what the worker does in a word, and why it is not ready."""
        if self._ended:
            return "stopped", Reason.STOPPED, ""
        if hands is None:
            return "new", Reason.NOT_STARTED, ""
        if hands.stopping:
            return "draining", Reason.DRAINING, f"{hands.busy} handlers still run"
        if hands.lapsed:
            return "lapsed", Reason.LEASE_LAPSED, "no heartbeat got through for a whole lease"
        if hands.taking:
            return "working", Reason.NONE, ""
        return "joining", Reason.JOINING, "it is not on record as a worker yet, or not any more"
