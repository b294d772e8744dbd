"""The `Dispatcher`: what a host embeds or the command line runs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from drr.backend import Backend, open_backend
from drr.clock import Clock, SystemClock
from drr.dispatcher.attendance import keep_attending
from drr.dispatcher.counters import Counters
from drr.dispatcher.describe import StatusWriter
from drr.dispatcher.election import Election
from drr.dispatcher.leadership import Leadership, tick_of
from drr.dispatcher.news import News
from drr.dispatcher.options import Options, package_version, read_options
from drr.dispatcher.plansfile import WATCH_INTERVAL, PlansFile, as_plans, check_author
from drr.dispatcher.recording import Recorder
from drr.dispatcher.settings import (
    Change,
    Changes,
    assign,
    check_node_policy,
    check_pool_policy,
    note,
    set_node,
    set_plans,
    set_pool,
)
from drr.dispatcher.surveying import keep_surveying, prepare, survey
from drr.dispatcher.vitals import Vitals
from drr.errors import BackendError, CommitRefused, NotLeading, PlansError, StoreNotPrepared
from drr.health import DispatcherHealth
from drr.model import NodePolicy, PoolPolicy, TenantPath, check_name
from drr.plans import Plans
from drr.timing import Backoff, Signal

log = logging.getLogger("drr.dispatcher")

POLLS_PER_LEASE: Final = 6
"""Looks of a standby at the leader per leader lease."""
PARTING_TIME: Final = 5.0
"""Most real seconds that giving up the leadership and closing connections may take."""


class Dispatcher:
    """Shares the slots of the workers fairly among the tenants, as leader or as standby.

    Use it as an async context manager; it works in the background of the host's event loop::

        async with Dispatcher("redis://localhost:6379", pools={"default": PoolPolicy()}) as dispatcher:
            await dispatcher.wait_leading()

    Any number may run on one namespace: one leads, the others stand by and take over within about ``leader_lease``
    seconds when it fails, and at once when it leaves the context. After an error of the store a dispatcher drops
    what it knows and loads again; such errors are logged. Out of the ``async with`` block come only errors of drr.
    """

    def __init__(
        self,
        store: str | Backend,
        *,
        namespace: str = "drr",
        name: str = "",
        lease: float = 30.0,
        heartbeat: float | None = None,
        leader_lease: float = 3.0,
        patience: float = 0.0,
        poison_after: int = 3,
        depth: int = 2,
        pools: Mapping[str, PoolPolicy] | None = None,
        policies: Mapping[str, Mapping[str | TenantPath, NodePolicy]] | None = None,
        plans: Plans | str | PathLike[str] | None = None,
        record: str | PathLike[str] | Recorder | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Check the settings; nothing is connected yet.

        ``store``: a URL (opened here and closed at the end), or an open backend (left open). ``name``: for
        people, in the status and the log. ``lease``: seconds without a sign of life after which a worker, or
        an attempt that nobody claims, is lost; at least 0.1. ``heartbeat``: the longest interval between two
        heartbeats of any worker, at most (and by default) a third of the lease; a worker that misses two is
        sent nothing new. ``leader_lease``: seconds after which a silent leader is replaced; 0.1 to 3600.
        ``patience``: seconds to wait at the start for a store that cannot be reached; by default none.
        ``poison_after``: lost attempts after which a job is given up. ``depth``: names in a tenant path,
        organisation and project by default; must be the same for all dispatchers of a namespace.

        ``pools`` and ``policies`` (by pool, then by path as ``"acme/billing"`` or a tuple) are entitlements to
        start with: when this dispatcher first comes to lead, they replace what is stored for the pools and
        nodes that they name, and are stored. Give all dispatchers of a namespace the same.

        ``plans``: a plans file, which is watched: a change acts on the backlog at once, a bad file changes nothing;
        or `Plans` that were read. They are put into force when this dispatcher first leads.

        ``record``: a file ending in ``.csv`` or ``.csv.gz`` into which the jobs that end are recorded while this
        dispatcher leads, to be replayed by ``drr simulate``; or a `Recorder`, with settings of its own.

        Raises `InvalidConfiguration`, `InvalidPolicy`, `InvalidName`, `PlansError` or `UnknownBackend`.
        """
        self._options: Options = read_options(
            name, lease, heartbeat, leader_lease, patience, poison_after, depth, pools, policies
        )
        self._clock = clock or SystemClock()
        self._owned = isinstance(store, str)
        self._backend = (
            open_backend(store, namespace=namespace, clock=self._clock) if isinstance(store, str) else store
        )
        self._rng = rng or random.SystemRandom()
        self._recorder = record if record is None or isinstance(record, Recorder) else Recorder(record)
        self._counters = Counters()
        self._wake = Signal()
        seeds = [Change(binding, lasting=True) for binding in self._options.bindings]
        self._changes = Changes(self._wake, seeds)
        self._plans: Plans | None = None
        self._watched = None if plans is None or isinstance(plans, Plans) else PlansFile(plans)
        if plans is not None:
            self.plans = plans if self._watched is None else self._watched.read()
        self._leading = asyncio.Event()
        tick = tick_of(self._options.rules.lease, leader_lease)
        self._vitals = Vitals(self._clock, self._options.name, leader_lease, tick)
        self._status = StatusWriter(self._clock, self._options.name, package_version(), self._vitals)
        self._entered = False
        self._group: TaskGroup | None = None

    # --- the host's side ------------------------------------------------------------------------------

    async def __aenter__(self) -> Dispatcher:
        """Prepare the store and start.

        Raises `BackendError` subclasses if the store cannot be used, and `InvalidConfiguration` if the file to
        record into cannot.
        """
        if self._entered:
            raise RuntimeError("a Dispatcher can be entered once; make a new one to start again")
        self._entered = True
        try:
            if self._recorder is not None:
                self._recorder.open()
            await prepare(self._backend, self._clock, self._rng, self._options.patience)
            await survey(self._backend, self._vitals)
        except BaseException:
            await self._close_record()
            if self._owned:
                await self._backend.close()
            raise
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Finish the commit under way, hand over the leadership, stop."""
        group = self._group
        assert group is not None, "entered before"
        group.cancel_scope.cancel()
        try:
            return await group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as several:
            only = _only(several)
            if only is error:
                return None
            raise only from None
        finally:
            self._changes.refuse(NotLeading(self._vitals.leader))
            await self._close_record()

    async def _close_record(self) -> None:
        if self._recorder is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._recorder.close)

    @property
    def is_leader(self) -> bool:
        """Whether this dispatcher leads, as far as it knows."""
        return self._leading.is_set()

    @property
    def counters(self) -> Counters:
        """What this dispatcher has done since it was made."""
        return self._counters

    def health(self, *, patience: float = 10.0) -> DispatcherHealth:
        """Return whether this dispatcher is live and ready, and why not. From any thread; asks nobody.

        Ready: it leads or stands by, and the store has answered within ``leader_lease`` seconds. Live: its loop has
        not ended or stuck, and the event loop has turned within ``patience`` seconds (which other threads can see).
        """
        return self._vitals.health(patience)

    async def wait_leading(self) -> None:
        """Return once this dispatcher leads and has loaded."""
        await self._leading.wait()

    async def set_policy(self, path: str | TenantPath, policy: NodePolicy | None, *, pool: str = "default") -> None:
        """Set a tenant's policy in ``pool``, or reset it with ``None``; returns once it is stored.

        It binds with the next pass, on the backlog too, and survives takeovers. Raises `NotLeading` on a
        standby, `InvalidPolicy` or `InvalidName` for values that are not allowed.
        """
        checked = check_node_policy(path, policy, self._options.rules.depth)
        await self._change(Change(set_node(pool, checked, policy)))

    async def set_pool(self, pool: str, policy: PoolPolicy) -> None:
        """Set a pool's quantum, default ceiling, reserve and default estimate; like `set_policy`."""
        await self._change(Change(set_pool(check_pool_policy(pool, policy), policy)))

    @property
    def plans(self) -> Plans | None:
        """The plans that were last given to this dispatcher; set them to put others into force with the next pass.

        A standby keeps them until it leads. Takes `Plans`, or the path of a plans file, which is read here and now.
        Setting raises `PlansError`, and then nothing changes. See `apply_plans` to wait until they are stored.
        """
        return self._plans

    @plans.setter
    def plans(self, plans: Plans | str | PathLike[str]) -> None:
        self._plans = as_plans(plans)
        self._changes.put(Change(set_plans(self._plans, "", self._clock), lasting=True, kind="plans"))

    async def apply_plans(self, plans: Plans | str | PathLike[str], *, by: str = "") -> None:
        """Put plans into force; return once they are stored. ``by``: who does that, for the log of changes.

        All of it binds at once and is stored in one commit: weights, caps, floors, quotas, retries, limits, on
        the backlog too. Raises `PlansError`, `UnknownPlan` if an organisation was assigned to a plan that these do
        not have, and `NotLeading` on a standby; then nothing has changed.
        """
        read = as_plans(plans)
        await self._change(Change(set_plans(read, check_author(by), self._clock)))
        self._plans = read

    async def assign(self, organisation: str, plan: str | None, *, by: str = "") -> None:
        """Put an organisation on a plan, or with ``None`` on what the plans file says; return once that is stored.

        It comes before what the file says, and survives takeovers and new files. Raises `UnknownPlan`,
        `InvalidName`, `PlansError` if what the file says of the organisation contradicts the plan, and
        `NotLeading` on a standby.
        """
        check_name("organisation", organisation)
        wanted = check_name("plan", plan) if plan else ""  # here: an error of the host's must not end the loop
        await self._change(Change(assign(organisation, wanted, check_author(by), self._clock)))

    async def _change(self, change: Change) -> None:
        if not self.is_leader:
            raise NotLeading(self._vitals.leader)
        await self._changes.make(change)

    # --- the background -------------------------------------------------------------------------------

    async def _run(self) -> None:
        calls_backend = self._backend.sibling()
        news = News(self._backend, self._clock, self._wake, self._rng)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(news.run)
                group.start_soon(self._tick)
                group.start_soon(keep_surveying, self._backend, self._clock, self._vitals)
                group.start_soon(keep_attending, self._backend, self._clock, self._options)
                if self._watched is not None:
                    group.start_soon(self._watch_plans, self._watched)
                group.start_soon(self._stand_and_lead, calls_backend, news)
        finally:
            self._vitals.stopped()
            with anyio.move_on_after(PARTING_TIME, shield=True):
                await news.close()
                await calls_backend.close()
                if self._owned:
                    await self._backend.close()

    async def _tick(self) -> None:
        while True:
            self._vitals.turned()
            await self._clock.sleep(self._vitals.tick)
            self._wake.set()

    async def _stand_and_lead(self, calls_backend: Backend, news: News) -> None:
        election = Election(self._options.leader_lease, lambda: f"{self._rng.getrandbits(128):032x}")
        try:
            await self._lead_again_and_again(election, calls_backend, news)
        finally:
            await self._resign(election)

    async def _lead_again_and_again(self, election: Election, calls_backend: Backend, news: News) -> None:
        backoff = Backoff(self._rng)
        trusting, again = True, False
        while True:
            try:
                token = await self._stand(election, calls_backend)
                self._counters.takeovers += 1
                self._counters.reloads += again
                await self._lead(token, news, backoff, trusting=trusting)
            except BackendError as error:
                # An announced head that was not there refuses the commit; reading lanes first cannot be fooled.
                trusting, again = not isinstance(error, CommitRefused), True
                self._vitals.failed(error)
                log.warning("%s: %s; dropping what is known and starting anew", type(error).__name__, error)
                await self._clock.sleep(backoff.next())
                if isinstance(error, StoreNotPrepared):
                    await self._prepare_again()

    async def _watch_plans(self, file: PlansFile) -> None:
        while True:
            await self._clock.sleep(WATCH_INTERVAL)
            try:
                if not await anyio.to_thread.run_sync(file.changed):
                    continue
                self.plans = await anyio.to_thread.run_sync(file.read)
                log.info("%s has changed and is put into force", file.source)
            except PlansError as error:
                log.error("the plans stay as they are: %s", error)
                refusal = note(f"plans {file.source}", str(error), "", self._clock)
                self._changes.put(Change(refusal, lasting=True, kind="refused plans"))

    async def _prepare_again(self) -> None:
        try:
            await self._backend.prepare()
        except BackendError as error:
            log.warning("the store cannot be prepared: %s", error)

    async def _stand(self, election: Election, calls_backend: Backend) -> str:
        """Stand by until this dispatcher is elected; return its token."""
        poll = self._options.leader_lease / POLLS_PER_LEASE
        while True:
            record = await self._backend.leader()
            self._vitals.stands_by(record.token)
            bid = election.look(record, self._clock.monotonic())
            if bid is not None:
                expected, token = bid
                with anyio.CancelScope(shield=True):
                    elected = await self._backend.elect(expected, token)
                if not elected:
                    continue
                log.info("%s leads as %s", self._options.name, token)
                self._vitals.elected(token)
                return token
            self._changes.refuse(NotLeading(record.token))
            await calls_backend.await_resignation(poll)

    async def _lead(self, token: str, news: News, backoff: Backoff, *, trusting: bool) -> None:
        leadership = Leadership(
            self._backend,
            self._clock,
            token,
            self._options.rules,
            self._options.leader_lease,
            news=news,
            wake=self._wake,
            changes=self._changes,
            counters=self._counters,
            status=self._status,
            trusting=trusting,
            vitals=self._vitals,
            recorder=self._recorder,
            rng=self._rng,
        )
        began = self._clock.monotonic()

        def on_progress() -> None:
            # Not sooner, or an error at every other commit would be met with no pause at all.
            if self._clock.monotonic() - began > self._options.leader_lease:
                backoff.reset()

        try:
            await leadership.run(self._leading.set, on_progress)
        finally:
            self._leading.clear()
            news.stop()
            self._changes.retry()

    async def _resign(self, election: Election) -> None:
        """Hand over at once: on the way out nothing is left to be decided.

        It may be while recovering from an error, or after an election whose reply was lost, so it is not
        known which token is on record, if any.
        """
        with anyio.move_on_after(PARTING_TIME, shield=True):
            try:
                for token in election.tokens:
                    await self._backend.resign(token)
            except BackendError as error:
                log.warning("the leadership could not be given up (%s); it will lapse", error)


def _only(error: BaseException) -> BaseException:
    """Return the one exception in nested groups, or the group if there are several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
