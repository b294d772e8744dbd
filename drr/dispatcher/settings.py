"""Changes of entitlement through a running dispatcher: validated, bound with the next pass, stored by its commit."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from drr.backend import ChangeRecord, Commit
from drr.clock import Clock
from drr.dispatcher.engine import Engine
from drr.errors import DrrError, InvalidPolicy, NotLeading
from drr.model import NodePolicy, PoolPolicy, Settings, TenantPath, check_name, check_path
from drr.plans import Plans, differences
from drr.timing import Signal

log = logging.getLogger("drr.dispatcher")

Binding: TypeAlias = Callable[[Engine], None]

FRESH: Final = 60.0
"""Seconds for which a stored change is remembered: a store that restarts may have lost the last of what it stored."""


@dataclass(slots=True, eq=False)
class Change:
    """One change, which ``bind`` puts into force in an engine; it raises what is wrong with it, and then nothing is.

    ``lasting``: nobody waits for it, and it is kept for the next leadership if this one is lost. ``kind``: a later
    change of the same kind that was `put` takes its place.
    """

    bind: Binding
    lasting: bool = False
    kind: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    error: DrrError | None = None


def set_node(pool: str, path: TenantPath, policy: NodePolicy | None) -> Binding:
    """Return what sets a node's policy, or resets it with ``None``."""
    return lambda engine: engine.set_policy(pool, path, policy)


def set_pool(pool: str, policy: PoolPolicy) -> Binding:
    """Return what sets a pool's settings."""
    return lambda engine: engine.set_pool(pool, policy)


def set_plans(plans: Plans, by: str, clock: Clock) -> Binding:
    """Return what puts plans into force, and writes that into the log of changes."""

    def bind(engine: Engine) -> None:
        before = engine.entitlement
        try:
            after = before.with_plans(plans.text, plans.source)
        except DrrError as error:
            note(f"plans {plans.source}", str(error), by, clock)(engine)
            raise
        if after.settings != before.settings:
            what = f"plans {plans.source}: {differences(before.plans, after.plans)}"
            engine.entitle(after, [ChangeRecord(clock.wall(), "", by, what)])

    return bind


def assign(organisation: str, plan: str, by: str, clock: Clock) -> Binding:
    """Return what puts an organisation on a plan, or with ``""`` on what the plans say, and writes that down."""

    def bind(engine: Engine) -> None:
        what = f"{organisation} on plan {plan}" if plan else f"{organisation} on the plan of the plans file"
        try:
            after = engine.entitlement.with_assignment(organisation, plan)
        except DrrError as error:
            note(what, str(error), by, clock)(engine)
            raise
        engine.entitle(after, [ChangeRecord(clock.wall(), "", by, what)])

    return bind


def note(what: str, refused: str, by: str, clock: Clock) -> Binding:
    """Return what writes a refused change into the log."""
    return lambda engine: engine.entitle(engine.entitlement, [ChangeRecord(clock.wall(), "", by, what, refused)])


class Bound(NamedTuple):
    """A change that an engine has taken over, the settings before it, and when it was stored (monotonic)."""

    change: Change
    before: Settings
    at: float = 0.0


class Changes:
    """The changes that were asked for and are not stored yet, in order; and those that have just been stored.

    If a leader loads settings as they were before a change that it has stored within the last minute, then the store
    has gone back, and the change is made again. Otherwise caps and weights would be gone for good, unheard.
    """

    def __init__(self, wake: Signal, first: Iterable[Change]) -> None:
        self._wake = wake
        self._waiting: deque[Change] = deque(first)
        self._bound: deque[Bound] = deque()
        self._fresh: list[Bound] = []

    async def make(self, change: Change) -> None:
        """Return once the change is stored; raises what is wrong, and `NotLeading` if the leadership is lost."""
        self._waiting.append(change)
        self._wake.set()
        await change.over.wait()
        if change.error is not None:
            raise change.error

    def apply(self, engine: Engine) -> None:
        """Bind what was asked for since the last pass."""
        while self._waiting:
            change = self._waiting.popleft()
            before = engine.settings
            try:
                change.bind(engine)
            except DrrError as error:
                log.error("a change is refused: %s", error)
                change.error = error
                change.over.set()
                continue
            if engine.settings_changed:
                self._bound.append(Bound(change, before))
            else:
                change.over.set()  # it was so already

    def put(self, change: Change) -> None:
        """Have a change made with the next pass; nobody waits for it."""
        if change.kind:
            self._waiting = deque(other for other in self._waiting if other.kind != change.kind)
        self._waiting.append(change)
        self._wake.set()

    def stored(self, commit: Commit, now: float) -> None:
        """Note that a commit succeeded."""
        if commit.settings is not None:
            self._forget_old(now)
            while self._bound:
                bound = self._bound.popleft()
                bound.change.over.set()
                self._fresh.append(bound._replace(at=now))

    def loaded(self, settings: Settings, now: float) -> None:
        """A new engine begins with these settings: make again what the store has forgotten."""
        self._forget_old(now)
        for place in reversed(range(len(self._fresh))):
            if self._fresh[place].before == settings:
                again = [bound.change for bound in self._fresh[place:]]
                log.warning("the store has lost %d changes of settings; they are made again", len(again))
                self._waiting.extendleft(reversed(again))
                del self._fresh[place:]
                return

    def _forget_old(self, now: float) -> None:
        self._fresh = [bound for bound in self._fresh if now - bound.at <= FRESH]

    def retry(self) -> None:
        """The engine was dropped: bind in the next one what this one may not have stored."""
        self._waiting.extendleft(bound.change for bound in reversed(self._bound))
        self._bound.clear()

    def refuse(self, error: NotLeading) -> None:
        """Another dispatcher leads: nothing can be changed here."""
        self.retry()
        asked = [change for change in self._waiting if not change.lasting]
        self._waiting = deque(change for change in self._waiting if change.lasting)
        for change in asked:
            change.error = error
            change.over.set()


def check_node_policy(path: object, policy: object, depth: int) -> TenantPath:
    """Return the validated path of a policy; raises `InvalidName` or `InvalidPolicy`."""
    checked = check_path(path)
    if len(checked) > depth:
        raise InvalidPolicy("tenant path", "/".join(checked), f"tenant paths here have at most {depth} names")
    if policy is not None and not isinstance(policy, NodePolicy):
        raise InvalidPolicy("policy", policy, "it must be a NodePolicy, or None to reset")
    return checked


def check_pool_policy(pool: object, policy: object) -> str:
    """Return the validated name of a pool whose settings are given; raises `InvalidName` or `InvalidPolicy`."""
    name = check_name("pool", pool)
    if not isinstance(policy, PoolPolicy):
        raise InvalidPolicy("pool policy", policy, "it must be a PoolPolicy")
    return name
