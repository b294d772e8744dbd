"""Scenarios about the cost of decisions, counted in bytecodes and visits: S5, S7.

Counting instead of timing makes them exact and independent of the machine; `make bench-core` measures seconds.
"""

from __future__ import annotations

import itertools

import pytest

from drr.core.scheduler import Job, Scheduler
from drr.model import NodePolicy, Outcome, TenantPath
from tests.sim.work import count_bytecodes

CYCLES = 300
NUMBERS = itertools.count(1_000_000)


def organisation(number: int) -> TenantPath:
    return (f"org{number}", "main")


def backlogged(organisations: int, capped: int, slots: int) -> Scheduler:
    """``organisations`` tenants with work, of which the first ``capped`` have a cap of 1 and run one job."""
    policies = {organisation(number)[:1]: NodePolicy(hard_cap=1) for number in range(capped)}
    scheduler = Scheduler(policies=policies)
    scheduler.set_slots(slots)
    for number in range(organisations):
        for job in range(3):
            scheduler.offer(Job((number, job), organisation(number), 1.0))
    return scheduler


def settle_into(scheduler: Scheduler, starts: int) -> list[object]:
    """Start jobs until ``starts`` run, each replaced by another of its tenant; return the tokens."""
    tokens: list[object] = []
    for number in range(starts):
        lease = scheduler.take(number, 0.0)
        assert lease is not None
        tokens.append(number)
        scheduler.offer(Job(("more", number), lease.job.path, 1.0))
    return tokens


def cycle(scheduler: Scheduler, tokens: list[object]) -> list[TenantPath]:
    """`CYCLES` times: the oldest job ends, its tenant submits another, the next one starts."""
    served: list[TenantPath] = []
    for _ in range(CYCLES):
        ended = scheduler.settle(tokens.pop(0), Outcome.SUCCEEDED, 1.0)
        number = next(NUMBERS)
        scheduler.offer(Job(number, ended.job.path, 1.0))
        lease = scheduler.take(number, 1.0)
        assert lease is not None, "empty-handed while somebody has work"
        tokens.append(number)
        served.append(lease.job.path)
    return served


def cost_per_decision(scheduler: Scheduler, tokens: list[object]) -> tuple[float, float]:
    """Return bytecodes and idle visits per decision."""
    cycle(scheduler, tokens)  # past the newcomers' turns
    visits = scheduler.visits
    bytecodes = count_bytecodes(lambda: cycle(scheduler, tokens))
    return bytecodes / CYCLES, (scheduler.visits - visits) / CYCLES


def test_S5_capped_tenants_cost_nothing() -> None:
    """10,000 active organisations: a decision costs the same with none and with 9,900 at their cap of 1."""
    free = backlogged(10_000, 0, 20_000)
    base, _ = cost_per_decision(free, settle_into(free, 10_100))

    capped = backlogged(10_000, 9_900, 20_000)
    tokens = settle_into(capped, 10_100)
    busy = {lease.job.path for lease in capped.leases.values()}
    assert len(busy) == 10_000
    uncapped = {organisation(number) for number in range(9_900, 10_000)}
    # From here on only leases of the hundred end, so that the 9,900 stay at their caps.
    tokens = [token for token in tokens if capped.leases[token].job.path in uncapped]
    before = capped.visits
    cycles = [cycle(capped, tokens)]
    assert {path for served in cycles for path in served} <= uncapped
    cost = count_bytecodes(lambda: cycles.append(cycle(capped, tokens))) / CYCLES
    assert cost <= 1.5 * base
    assert capped.visits - before <= 3 * 2 * CYCLES


def test_S5_releases_of_capped_tenants_cost_no_more() -> None:
    """When the capped tenants' own jobs end, each is woken, served and parked again at the same cost."""
    free = backlogged(10_000, 0, 20_000)
    base, _ = cost_per_decision(free, settle_into(free, 10_000))
    capped = backlogged(10_000, 9_900, 20_000)
    cost, visits = cost_per_decision(capped, settle_into(capped, 10_000))
    assert cost <= 2.0 * base  # parking and waking is work that the other case does not have
    assert visits <= 3


def test_S7_active_tenants_cost_their_logarithm_at_most() -> None:
    """20 slots: a decision costs the same among 20,000 active organisations as among 200."""
    few = backlogged(200, 0, 20)
    base, few_visits = cost_per_decision(few, settle_into(few, 20))
    many = backlogged(20_000, 0, 20)
    cost, visits = cost_per_decision(many, settle_into(many, 20))
    assert cost <= 1.5 * base
    assert max(visits, few_visits) <= 3


def test_a_backlog_costs_nothing() -> None:
    """A decision costs the same whether each tenant has 3 jobs waiting or 300."""
    short = backlogged(50, 0, 20)
    base, _ = cost_per_decision(short, settle_into(short, 20))
    long = backlogged(50, 0, 20)
    for number in range(50):
        for job in range(300):
            long.offer(Job(("long", number, job), organisation(number), 1.0))
    cost, _ = cost_per_decision(long, settle_into(long, 20))
    assert cost == pytest.approx(base, rel=0.05)
