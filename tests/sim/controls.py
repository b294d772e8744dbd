"""Negative controls: the core with one rule broken, and the workload on which breaking it pays.

A check that cannot fail proves nothing. Each control names the rule that it breaks, a workload made to profit
from that, and the check that is meant to see it. The sound scheduler passes the same check on the same workload.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from unittest import mock

from drr.core.jobs import RunningLease
from drr.core.node import Node
from drr.core.ring import Ring, Seat
from drr.core.scheduler import Scheduler
from drr.core.tree import Tree
from drr.model import Outcome, PoolPolicy, TenantPath
from tests.sim.baselines import Fifo, RoundRobinByCount
from tests.sim.bounds import check_no_violations, check_nobody_overtakes, check_siblings
from tests.sim.driver import Schedules, Simulation, Work
from tests.sim.jobs import endless, one_at_a_time
from tests.sim.record import Record

A: TenantPath = ("a",)
B: TenantPath = ("b",)
POOL = PoolPolicy()


# --- one rule broken ----------------------------------------------------------------------------------


class NoSettlement(Scheduler):
    """The estimate is the charge, whatever the job really held."""

    def settle(self, token: Hashable, outcome: Outcome, held: float) -> RunningLease:
        """Settle to what was charged already."""
        return super().settle(token, outcome, self.leases[token].charged)

    def accrue(self, now: float) -> list[RunningLease]:
        """Charge no overrun."""
        return []


class DebtForgottenWhenEmpty(Scheduler):
    """A tenant whose queue is empty owes nothing any more."""

    def settle(self, token: Hashable, outcome: Outcome, held: float) -> RunningLease:
        """Settle, then forgive whoever has drained."""
        lease = super().settle(token, outcome, held)
        node: Node | None = lease.leaf
        while node is not None:
            if not node.queued:
                node.credit = max(0.0, node.credit)
            node = node.parent
        return lease


class EveryLossRefunded(Scheduler):
    """The platform pays for every lost attempt, not just for a job's first."""

    def final_charge(self, lease: RunningLease, outcome: Outcome, held: float) -> float:
        """Return 0 for any lost attempt."""
        return 0.0 if outcome.platform_fault else held


def clamped_charge(tree: Tree, node: Node, parent: Node, amount: float) -> None:
    """Charge; but a refund lifts the credit to one quantum at most."""
    node.charged += amount
    if amount < 0.0:
        node.credit = min(node.credit - amount, max(node.credit, node.quantum))
    else:
        node.credit -= amount


def clamped_grant(ring: Ring, seat: Seat, turn: int) -> None:
    """Grant; but never above the ceiling, as the textbook loop does on every visit."""
    seat.credit = min(seat.credit + (turn - seat.granted) * seat.quantum, seat.node.ceiling)
    seat.granted = turn


def always_newcomer(node: Node, ring: Ring) -> bool:
    """Every tenant that returns goes first."""
    return True


# --- workloads on which it pays -----------------------------------------------------------------------


def wrong_estimates(sim: Simulation) -> None:
    """A's estimates are ten times too high, B's exact; both always wait."""
    sim.keep_backlogged(A, endless(A, 1.0, wrong=10.0))
    sim.keep_backlogged(B, endless(B, 1.0))


def long_and_short(sim: Simulation) -> None:
    """A's jobs are 30 times as long as B's."""
    sim.keep_backlogged(A, endless(A, 30.0))
    sim.keep_backlogged(B, endless(B, 1.0))


def no_multiple_of_the_quantum(sim: Simulation) -> None:
    """A's jobs cost 1.5 quanta, B's 1."""
    sim.keep_backlogged(A, endless(A, 1.5))
    sim.keep_backlogged(B, endless(B, 1.0))


def killers(sim: Simulation) -> None:
    """Every attempt of A's jobs kills its worker after 5 s; a job is given up at the fifth."""
    sim.keep_backlogged(A, (Work(A, 5.0, 5.0, outcome=Outcome.LOST, poison=5) for _ in range(1_000_000)))
    sim.keep_backlogged(B, endless(B, 5.0))


def one_underestimated_at_a_time(sim: Simulation) -> None:
    """A has never more than one job in the system, and says that it costs a tenth; B always waits."""
    sim.keep_backlogged(B, endless(B, 1.0))
    works = endless(A, 10.0, wrong=0.1)
    sim.on_end(A, one_at_a_time(A, works))
    sim.arrive([(0.5, next(works))])


def one_at_a_time_each(sim: Simulation) -> None:
    """A submits its next job as soon as the last one has ended; B always waits."""
    sim.keep_backlogged(B, endless(B, 1.0))
    works = endless(A, 1.0)
    sim.on_end(A, one_at_a_time(A, works))
    sim.arrive([(0.5, next(works))])


# --- the table ----------------------------------------------------------------------------------------


def siblings_within_bound(record: Record, pool: PoolPolicy) -> None:
    """A and B, who both always wait, stay within the bound of each other."""
    check_siblings(record, pool, [(A, B)])
    check_no_violations(record)


def nobody_overtakes_b(record: Record, pool: PoolPolicy) -> None:
    """A, however it submits, gains nothing on B, who always waits."""
    check_nobody_overtakes(record, pool, B, [A])
    check_no_violations(record)


@dataclass(frozen=True)
class Control:
    """A broken scheduler, the workload that shows it, and the check that must fail."""

    name: str
    make: Callable[[PoolPolicy], Schedules]
    workload: Callable[[Simulation], None]
    check: Callable[[Record, PoolPolicy], None]
    pool: PoolPolicy = POOL
    patch: tuple[type, str, object] | None = None
    slots: int = 1
    seconds: float = 3_000.0

    def run(self, *, broken: bool) -> None:
        """Run the workload under the broken (or the sound) scheduler, and check it."""
        if broken and self.patch is not None:
            with mock.patch.object(*self.patch):
                self._run(self.make(self.pool))
        else:
            self._run(self.make(self.pool) if broken else Scheduler(self.pool))

    def _run(self, scheduler: Schedules) -> None:
        sim = Simulation(scheduler, self.slots, pool=self.pool)
        self.workload(sim)
        self.check(sim.run(until=self.seconds), self.pool)


CONTROLS = [
    Control("FIFO", lambda _: Fifo(), long_and_short, siblings_within_bound, seconds=8_000),
    Control(
        "round robin by job count",
        lambda _: RoundRobinByCount(),
        long_and_short,
        siblings_within_bound,
        slots=3,
        seconds=12_000,
    ),
    Control("settlement left out", NoSettlement, wrong_estimates, siblings_within_bound, slots=2, seconds=8_000),
    Control(
        "refunds clamped",
        Scheduler,
        wrong_estimates,
        siblings_within_bound,
        slots=2,
        seconds=8_000,
        patch=(Tree, "charge", clamped_charge),
    ),
    Control("debt reset on empty", DebtForgottenWhenEmpty, one_underestimated_at_a_time, nobody_overtakes_b),
    Control(
        "a newcomer turn at every drain",
        Scheduler,
        one_at_a_time_each,
        nobody_overtakes_b,
        patch=(Tree, "is_newcomer", staticmethod(always_newcomer)),
    ),
    Control("all lost attempts refunded", EveryLossRefunded, killers, siblings_within_bound, slots=2),
    Control(
        "a ceiling that clamps in the ring",
        Scheduler,
        no_multiple_of_the_quantum,
        siblings_within_bound,
        pool=PoolPolicy(ceiling=1.5),
        patch=(Ring, "grant", clamped_grant),
    ),
]
