"""D14: a producer that runs away from its cap, through a dispatcher on a store in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from drr.backend import Attempt
from drr.errors import BacklogFull
from drr.model import ANY, JobSpec, Lane, NodePolicy, Quota, Settings
from drr_backends.memory.admission import submit
from tests.helpers.site import Site, running
from tests.sim.work import count_bytecodes

pytestmark = pytest.mark.anyio

RUNAWAY = Lane("default", ("a", "p1"))
CALM = Lane("default", ("a", "p2"))
OTHER = Lane("default", ("b", "main"))
PER_PROJECT, PER_ORGANISATION = 10_000, 20_000


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    yield found
    await found.backend.close()


@dataclass
class Tally:
    """What came of a time: the first refusal of each lane, jobs added by lane, and seconds waited by lane."""

    refused: dict[Lane, BacklogFull] = field(default_factory=dict)
    added: dict[Lane, int] = field(default_factory=dict)
    waits: dict[Lane, list[float]] = field(default_factory=dict)

    async def offer(self, site: Site, lane: Lane, number: int) -> None:
        """Submit jobs one by one, as producers do that know nothing of each other."""
        for _ in range(number):
            try:
                await site.submit(lane)
                self.added[lane] = self.added.get(lane, 0) + 1
            except BacklogFull as refusal:
                self.refused.setdefault(lane, refusal)


async def run(site: Site, seconds: int, quotas: dict[tuple[str, ...], Quota]) -> Tally:
    """Let p1 submit 100 jobs a second, and p2 and the other organisation one each.

    All jobs run for a second, on five slots; p1 has a cap of 1.
    """
    tally, running_now = Tally(), list[Attempt]()
    settings = Settings(quotas=quotas, nodes={"default": {RUNAWAY.path: NodePolicy(hard_cap=1)}})
    site.store.settings = settings
    async with running(site, lease=60.0) as dispatcher:
        await dispatcher.wait_leading()
        await site.join("w1", slots=5)
        for _ in range(seconds):
            for attempt in running_now:
                await site.finish(attempt)
            await site.clock.settle()
            for lane, number in ((RUNAWAY, 100), (CALM, 1), (OTHER, 1)):
                await tally.offer(site, lane, number)
            running_now = await site.take("w1")
            for attempt in running_now:
                wait = site.clock.wall() - attempt.header.submitted_at
                tally.waits.setdefault(attempt.header.lane, []).append(wait)
            await site.pass_time(1.0, "w1")
    return tally


async def test_D14_a_runaway_is_refused_and_its_neighbours_are_not(site: Site) -> None:
    quotas = {(ANY,): Quota(jobs=PER_ORGANISATION), (ANY, ANY): Quota(jobs=PER_PROJECT)}
    tally = await run(site, 120, quotas)
    assert list(tally.refused) == [RUNAWAY]
    refusal = tally.refused[RUNAWAY]
    assert refusal.tenant == RUNAWAY.path
    assert (refusal.limit, refusal.depth) == (PER_PROJECT, PER_PROJECT)
    for words in ("a/p1", "10000", "backlog in jobs"):
        assert words in str(refusal)
    started = len(tally.waits[RUNAWAY])
    assert started == 120, "a job a second, as its cap has it"
    assert tally.added[RUNAWAY] - started == site.store.waiting[RUNAWAY.path][0]
    assert PER_PROJECT - 1 <= site.store.waiting[RUNAWAY.path][0] <= PER_PROJECT
    for lane in (CALM, OTHER):
        assert tally.added[lane] == 120
        assert len(tally.waits[lane]) == 120
        assert max(tally.waits[lane]) == 0.0, "each starts at once"


async def test_D14_fails_with_a_limit_for_the_organisation_only(site: Site) -> None:
    """Negative control: the runaway takes all that its organisation may have, and p2 is refused."""
    tally = await run(site, 30, {(ANY,): Quota(jobs=2_000)})
    assert set(tally.refused) == {RUNAWAY, CALM}
    assert tally.added[CALM] < 30
    assert tally.added[OTHER] == 30


def test_D14_the_check_costs_the_same_at_any_depth() -> None:
    site = Site()
    store = site.store
    store.settings = Settings(quotas={(ANY,): Quota(jobs=PER_ORGANISATION), (ANY, ANY): Quota(jobs=PER_PROJECT)})
    calls = iter(range(1, 100_000))

    def add() -> None:
        submit(store, "client", next(calls), [JobSpec(RUNAWAY, "work", b"", 0.0)])

    def refused() -> None:
        with pytest.raises(BacklogFull):
            add()

    costs = []
    for depth in (10, PER_PROJECT - 1):
        while store.waiting.get(RUNAWAY.path, (0, 0))[0] < depth:
            add()
        costs.append(count_bytecodes(add))
    assert costs[1] <= 1.1 * costs[0]
    assert count_bytecodes(refused) <= 3 * costs[0]
