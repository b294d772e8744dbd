"""The engine against the store under anything that clients, workers and time can do, in any order.

After every step the engine is compared with the store and the core with itself (`Desk.check`). At the end
the workers do their best, and every job must have ended exactly once (once more for each time it was revived),
and the accounts of usage must add up to what the core charged and what workers held, to the microsecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drr.backend import Commit, Drop, EventKind, RequestKind
from drr.core.jobs import RunningLease
from drr.core.scheduler import Scheduler
from drr.model import Lane, NodePolicy, Outcome, PoolPolicy, RetryPolicy, Share, SharedLimit
from drr_backends.memory.records import micro
from tests.helpers.desk import RULES, Desk

LANES = [
    Lane(pool, (organisation, project), priority)
    for pool in ("default", "renders")
    for organisation, project in (("acme", "web"), ("acme", "app"), ("globex", "mail"))
    for priority in (0, 5)
]
LANES += [
    Lane(pool, path, priority, limits)
    for pool, path in (("default", ("acme", "web")), ("renders", ("globex", "mail")))
    for priority, limits in ((5, ("db",)), (0, ("db", "mail")))
]
LIMITS = {"db": SharedLimit(concurrency=2, per_organisation=1), "mail": SharedLimit(rate=0.2)}
lanes = st.sampled_from(LANES)
workers = st.sampled_from(["w1", "w2", "w3"])
policies = st.one_of(
    st.none(),
    st.builds(NodePolicy, weight=st.sampled_from([0.5, 1.0, 4.0]), hard_cap=st.sampled_from([None, 1, 3])),
    st.builds(NodePolicy, soft_cap=st.sampled_from([1, Share(0.5)]), floor=st.sampled_from([0, 1])),
)
RETRIES = [None, RetryPolicy(attempts=2, delay=0.0), RetryPolicy(attempts=3, delay=5.0, factor=3.0)]
settle = Scheduler.settle


def ends_of(commit: Commit) -> list[str]:
    """Return the jobs that a commit ends."""
    headers = [item.lease.header for item in commit.settlements]
    headers += [item.header for item in commit.strikes]
    headers += [item.header for item in commit.drops_delayed]
    headers += [item.header for item in commit.removals if isinstance(item, Drop)]
    return [header.job_id for header in headers]


class Machine(RuleBasedStateMachine):
    """One namespace, one leader at a time, three workers."""

    @initialize()
    def start(self) -> None:
        self.settled: list[tuple[int, int]] = []
        """What the core charged in the end and was told of the time held, per attempt, in microseconds."""
        machine = self

        def watch(scheduler: Scheduler, token: Hashable, outcome: Outcome, held: float) -> RunningLease:
            lease = settle(scheduler, token, outcome, held)
            machine.settled.append((micro(lease.charged), micro(held)))
            return lease

        self.patch = patch.object(Scheduler, "settle", watch)
        self.patch.start()
        self.desk = Desk()
        self.desk.limit(**LIMITS)
        self.submitted: list[str] = []
        self.planted = 0
        self.incarnations = 2
        self.desk.join("w1", 3, "i1", "default")
        self.desk.join("w2", 2, "i2", "renders")
        for lane in LANES:
            self.submitted += self.desk.submit(lane, 3, retry=RETRIES[lane.priority % 3])
        self.desk.turn()

    # --- clients

    @rule(
        lane=lanes,
        number=st.integers(1, 12),
        estimate=st.sampled_from([None, 0.1, 1.0, 20.0]),
        retry=st.sampled_from(RETRIES),
        deadline=st.sampled_from([None, None, 0.05, 6.0, 60.0]),
        delay=st.sampled_from([None, None, 0.05, 7.0, 50.0]),
    )
    def submit(
        self, lane: Lane, number: int, estimate: float | None, retry: Any, deadline: float | None, delay: float | None
    ) -> None:
        wall = self.desk.clock.wall()
        self.submitted += self.desk.submit(
            lane,
            number,
            estimate=estimate,
            retry=retry,
            deadline=None if deadline is None else wall + deadline,
            due_at=0.0 if delay is None else wall + delay,
        )

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), number=st.integers(1, 30))
    def cancel(self, data: st.DataObject, number: int) -> None:
        first = data.draw(st.integers(0, len(self.submitted) - 1))
        self.desk.cancel(*self.submitted[first : first + number])

    @rule(
        data=st.data(),
        kind=st.sampled_from(EventKind),
        cancelled=st.sampled_from(["no", "no", "before", "after", "long before"]),
        seconds=st.sampled_from([0.5, 2.0, 12.0]),
    )
    def work(self, data: st.DataObject, kind: EventKind, cancelled: str, seconds: float) -> None:
        """Workers take what there is, and one attempt ends, perhaps one of a job that is cancelled."""
        desk = self.desk
        for name, record in desk.store.workers.items():
            for pool in record.slots:
                desk.take(name, pool=pool)
            desk.beat(name)
        desk.look()
        held = [(name, attempt) for name, attempts in desk.taken.items() for attempt in attempts]
        if not held:
            desk.turn()
            return
        name, attempt = data.draw(st.sampled_from(held))
        desk.clock.now += seconds
        if cancelled in ("before", "long before"):
            desk.cancel(attempt.header.job_id)
            if cancelled == "long before":
                desk.turn()
                assert attempt.token not in desk.store.leases or desk.store.leases[attempt.token].cancelled
        desk.finish(attempt, kind, name, seconds)
        if cancelled == "after":
            desk.cancel(attempt.header.job_id)
        desk.hear()

    @precondition(lambda self: self.desk.store.dead)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        self.desk.request(RequestKind.REVIVE, str(data.draw(st.sampled_from(sorted(self.desk.store.dead)))))

    # --- workers

    @rule(name=workers, slots=st.integers(0, 5), pool=st.sampled_from(["default", "renders"]))
    def join(self, name: str, slots: int, pool: str) -> None:
        self.incarnations += 1
        self.desk.join(name, slots, f"i{self.incarnations}", pool)

    @rule(name=workers, draining=st.booleans())
    def beat(self, name: str, draining: bool) -> None:
        if not self.desk.beat(name, draining=draining):
            self.desk.taken[name] = []

    @rule(name=workers, limit=st.integers(1, 5))
    def take(self, name: str, limit: int) -> None:
        record = self.desk.store.workers.get(name)
        if record is not None:
            for pool in record.slots:
                self.desk.take(name, limit, pool)

    @rule(
        name=workers,
        kind=st.sampled_from([*EventKind, EventKind.SUCCEEDED]),
        seconds=st.sampled_from([0.0, 0.5, 7.0, -1.0, 1e9, float("nan")]),
        first=st.booleans(),
    )
    def finish(self, name: str, kind: EventKind, seconds: float, first: bool) -> None:
        held = self.desk.taken.get(name)
        if held:
            self.desk.finish(held[0 if first else -1], kind, name, seconds)

    @rule(name=workers)
    def leave(self, name: str) -> None:
        if name in self.desk.store.workers:
            self.desk.leave(name)
            self.desk.taken[name] = []

    # --- the dispatcher

    @rule()
    def hear_and_pass(self) -> None:
        self.desk.hear()
        self.desk.step()

    @rule()
    def turn(self) -> None:
        self.desk.turn()

    @rule(limit=st.integers(1, 3))
    def hear_a_little(self, limit: int) -> None:
        self.desk.hear(limit)

    @rule(trusting=st.booleans())
    def reload(self, trusting: bool) -> None:
        self.desk.load(trusting=trusting)

    @rule(
        pool=st.sampled_from(["default", "renders"]),
        path=st.sampled_from([("acme",), ("acme", "web")]),
        policy=policies,
    )
    def set_policy(self, pool: str, path: tuple[str, ...], policy: NodePolicy | None) -> None:
        self.desk.engine.set_policy(pool, path, policy)

    @rule(quantum=st.sampled_from([0.1, 1.0, 5.0]), reserve=st.sampled_from([0, 0, 1]))
    def set_pool(self, quantum: float, reserve: int) -> None:
        self.desk.engine.set_pool("default", PoolPolicy(quantum=quantum, reserve=reserve))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 16.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.desk.clock.now += seconds
        self.desk.look()

    # --- what must hold

    @precondition(lambda self: hasattr(self, "desk"))
    @invariant()
    def consistent(self) -> None:
        self.desk.step()
        self.desk.check()
        self.check_limits()
        self.check_ends()
        self.check_usage()

    def check_limits(self) -> None:
        holders = [it.header.lane for it in self.desk.store.leases.values() if "db" in it.header.lane.limits]
        assert len(holders) <= 2
        assert len({lane.path[0] for lane in holders}) == len(holders), "one of each organisation"
        assert self.desk.engine.backlog.book.running("db") == len(holders)

    def check_ends(self) -> None:
        ended = Counter(job_id for commit in self.desk.commits for job_id in ends_of(commit))
        revived = Counter(item.header.job_id for commit in self.desk.commits for item in commit.revivals)
        for job_id, times in ended.items():
            assert times <= 1 + revived[job_id], f"{job_id} ends once"
        assert set(ended) <= set(self.submitted)
        for commit in self.desk.commits:
            for settlement in commit.settlements:
                assert 0.0 <= settlement.completion.seconds < 1e6

    def check_usage(self) -> None:
        counts = [sum(column) for column in zip(*self.desk.usage().values(), strict=True)] or [0] * 10
        assert counts[7] == counts[8] + counts[9], "held is what was charged and what was refunded"
        assert counts[8] == sum(charged for charged, _ in self.settled), "what the core has charged"
        assert counts[7] == sum(held for _, held in self.settled), "what workers have held"
        ended = sum(len(it.settlements) + len(it.requeues) + len(it.postpones) for it in self.desk.commits)
        assert sum(counts[:6]) == ended == len(self.settled), "to the last attempt"

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        try:
            self.finish_everything()
        finally:
            self.patch.stop()

    def finish_everything(self) -> None:
        desk = self.desk
        desk.engine.set_pool("default", PoolPolicy())
        for pool in ("default", "renders"):
            self.incarnations += 1
            desk.join(f"last-{pool}", 50, f"i{self.incarnations}", pool)
        names = ["last-default", "last-renders"]
        for _ in range(300):
            desk.turn()
            for name, pool in zip(names, ("default", "renders"), strict=True):
                desk.take(name, pool=pool)
                for attempt in list(desk.taken[name]):
                    desk.finish(attempt, name=name)
            desk.clock.now += RULES.lease / 6
            for name in names:
                desk.beat(name)
            desk.look()
            if not desk.store.lanes and not desk.store.leases and not desk.store.delayed:
                break
        assert (desk.store.lanes, desk.store.leases, desk.store.delayed) == ({}, {}, {}), "everything ends"
        ended = Counter(job_id for commit in desk.commits for job_id in ends_of(commit))
        revived = Counter(item.header.job_id for commit in desk.commits for item in commit.revivals)
        assert ended == Counter(self.submitted) + revived, "every job exactly once"
        assert sum(1 for letter in desk.store.dead.values() if letter.header is None) == self.planted
        assert desk.store.waiting == {}
        desk.check()
        self.check_usage()


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase
