"""Health: what a dispatcher or a worker says of itself to whatever keeps processes running.

Two questions, as orchestrators ask them. *Live*: does the process do its work, or would it if the store let it? One
that does not is to be restarted. *Ready*: is it of use now? One that is not needs time, or the store back; a restart
would help nobody. So an outage of the store makes nothing unlive.

The values here are plain: `Dispatcher.health` and `Worker.health` make them, `drr.probe` answers HTTP with them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from drr.durability import Caution, Level


class Reason(StrEnum):
    """Why a process is not ready, or not live. Stable names, for alerts and scripts; ``NONE``: it is ready."""

    NONE = ""
    NOT_STARTED = "not_started"
    LOADING = "loading"
    """Elected, and reading the state to lead from."""
    JOINING = "joining"
    """A worker that is not on record yet, or not any more: it registers as a new incarnation."""
    STORE_LOST = "store_lost"
    """The last call of the store failed, and none has succeeded since."""
    STORE_SILENT = "store_silent"
    """The store has not answered for too long; a call may be hanging."""
    STUCK = "stuck"
    """The store has neither answered nor failed for minutes though every call of it is bounded: a defect of drr."""
    LEASE_LAPSED = "lease_lapsed"
    """No heartbeat got through for a whole lease: others may be running the jobs by now."""
    DRAINING = "draining"
    """Told to stop: takes nothing new, finishes what runs."""
    LOOP_BLOCKED = "event_loop_blocked"
    """Something computes on the event loop without awaiting."""
    HEART_STOPPED = "heartbeat_stopped"
    """The thread of the heartbeat has ended though the worker works; see its log."""
    STOPPED = "stopped"
    """Its loop has ended: asked to, or by an error of drr itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a process says of itself at one moment.

    ``role``: "dispatcher" or "worker". ``state``: what it does, in words. ``reason`` is `Reason.NONE` exactly if it
    is ``ready``; ``detail`` are words about it (the last error), at most 300 characters. ``blocked``: seconds, at
    least, for which its event loop has not turned; 0.0 if it turns.
    """

    role: str
    name: str
    state: str
    live: bool
    ready: bool
    reason: Reason
    detail: str
    blocked: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that JSON has."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherHealth(Health):
    """Of a dispatcher. ``state``: "new", "standing by", "loading", "leading", "recovering" or "stopped".

    ``leader``: token of the leader as last seen, or empty. ``answered``: seconds since the store last answered;
    ``committed``: since this dispatcher's last commit. ``None``: never yet. ``durability`` and ``cautions``: what the
    store said of itself when it was last asked; they make nobody unready.
    """

    leader: str
    answered: float | None
    committed: float | None
    durability: Level
    cautions: tuple[Caution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth(Health):
    """Of a worker. ``state``: "new", "joining", "working", "draining", "lapsed" or "stopped".

    ``beaten``: seconds since the last heartbeat that got through was sent, ``None`` before the first. ``running``:
    slots that a handler occupies. ``blocks``: how often the event loop was blocked for longer than ``blocked_after``.
    """

    beaten: float | None
    running: int
    blocks: int
