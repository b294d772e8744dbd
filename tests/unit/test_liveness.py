"""Who lives and what is lost, by renewal counters over the leader's own clock."""

from __future__ import annotations

import pytest

from drr.dispatcher.liveness import Capacity, Cause, Hold, Liveness
from drr.model import Header, Lane, Lease
from tests.contract.harness import worker
from tests.helpers.desk import ACME, Desk

LEASE, HEARTBEAT = 30.0, 10.0


class Watch:
    """A `Liveness` that is shown records at given times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.liveness = Liveness(LEASE, HEARTBEAT, self.now)
        self.renewals: dict[str, int] = {}

    def hold(self, token: str, pool: str = "default") -> Hold:
        header = Header(Lane(pool, ("acme", "web")), 1, "n", "work", 0.0)
        found = Hold(Lease(token, header, 1, 0.0, 1.0), self.now, self.now)
        self.liveness.add(found)
        return found

    def look(self, *records, seconds: float = 5.0, beating: bool = True):  # type: ignore[no-untyped-def]
        """Let time pass, then look; ``records`` with a counter that moves if ``beating``."""
        self.now += seconds
        shown = []
        for record in records:
            key = record.name + record.incarnation
            self.renewals[key] = self.renewals.get(key, 0) + beating
            shown.append(
                worker(
                    record.name,
                    record.incarnation,
                    slots=record.slots,
                    held=record.held,
                    draining=record.draining,
                    renewals=self.renewals[key],
                )
            )
        gone, dead = self.liveness.look(shown, self.now, self.now)
        return {item.token: item.cause for item in gone}, dead


def test_a_worker_is_dead_when_its_counter_stood_still_for_one_lease() -> None:
    watch = Watch()
    watch.hold("t1")
    beat = worker(held=("t1",))
    assert watch.look(beat) == ({}, {})
    for _ in range(5):
        assert watch.look(beat, beating=False) == ({}, {})
    assert watch.look(beat, beating=False) == ({"t1": Cause.WORKER_DEAD}, {"w1": "i1"})
    assert watch.liveness.workers == {}


def test_a_beating_worker_lives_for_ever_and_so_does_what_it_lists() -> None:
    watch = Watch()
    watch.hold("t1")
    for _ in range(100):
        assert watch.look(worker(held=("t1",))) == ({}, {})


def test_an_unclaimed_attempt_goes_back_after_one_lease() -> None:
    """Nobody lists it and nobody has died: nobody had it, so nobody is blamed."""
    watch = Watch()
    watch.look(worker())
    watch.hold("t1")
    for _ in range(5):
        assert watch.look(worker()) == ({}, {})
    assert watch.look(worker()) == ({"t1": Cause.UNCLAIMED}, {})
    assert not Cause.UNCLAIMED.counts


def test_an_unclaimed_attempt_counts_as_lost_if_a_worker_died_that_may_have_had_it() -> None:
    """An attempt that kills its worker before the first heartbeat must be able to become poison."""
    watch = Watch()
    watch.look(worker())
    watch.hold("t1")
    for _ in range(5):
        watch.look(worker(), beating=False)
    gone, dead = watch.look(worker(), beating=False)
    assert (gone, dead) == ({"t1": Cause.SWALLOWED}, {"w1": "i1"})
    assert Cause.SWALLOWED.counts


def test_a_replaced_worker_swallowed_what_nobody_claims() -> None:
    watch = Watch()
    watch.look(worker())
    watch.hold("t1")
    for _ in range(5):
        watch.look(worker(incarnation="i2"))
    assert watch.look(worker(incarnation="i2")) == ({"t1": Cause.SWALLOWED}, {})


def test_a_dead_worker_swallowed_no_more_than_it_had_slots_free() -> None:
    """One of its two slots was busy: of three attempts that nobody claims it had the oldest, at most."""
    watch = Watch()
    watch.hold("mine")
    two = worker(slots={"default": 2}, held=("mine",))
    watch.look(two)
    for token in ("t1", "t2", "t3"):
        watch.hold(token)
    for _ in range(5):
        watch.look(two, beating=False)
    gone, _ = watch.look(two, beating=False)
    assert gone == {
        "mine": Cause.WORKER_DEAD,
        "t1": Cause.SWALLOWED,
        "t2": Cause.UNCLAIMED,
        "t3": Cause.UNCLAIMED,
    }


def test_the_death_of_another_pools_worker_blames_nobody() -> None:
    watch = Watch()
    watch.look(worker(), worker("w2", slots={"renders": 1}))
    watch.hold("t1")
    for _ in range(5):
        watch.look(worker())
        watch.look(worker(), worker("w2", slots={"renders": 1}), seconds=0.0)
    watch.look(worker(), worker("w2", "i9", slots={"renders": 1}), seconds=0.0)
    assert watch.look(worker()) == ({"t1": Cause.UNCLAIMED}, {})


def test_a_worker_that_leaves_gives_everything_back_at_once() -> None:
    watch = Watch()
    watch.hold("t1")
    watch.look(worker(held=("t1",)))
    assert watch.look() == ({"t1": Cause.WORKER_LEFT}, {})
    assert not Cause.WORKER_LEFT.counts


def test_a_new_incarnation_replaces_the_old_at_once() -> None:
    watch = Watch()
    watch.hold("t1")
    watch.look(worker(held=("t1",)))
    assert watch.look(worker(incarnation="i2")) == ({"t1": Cause.WORKER_REPLACED}, {})


def test_an_attempt_that_its_worker_no_longer_lists_is_lost_after_one_lease() -> None:
    watch = Watch()
    watch.hold("t1")
    watch.look(worker(held=("t1",)))
    for _ in range(5):
        assert watch.look(worker()) == ({}, {})
    assert watch.look(worker()) == ({"t1": Cause.DROPPED}, {})


def test_a_paused_observer_reaps_nobody() -> None:
    """After a gap of more than half a lease between two looks, everybody gets one full lease again."""
    watch = Watch()
    watch.hold("t1")
    watch.hold("t2")
    beat = worker(held=("t1",))
    watch.look(beat)
    assert watch.look(beat, seconds=3600.0, beating=False) == ({}, {})
    for _ in range(5):
        assert watch.look(beat, beating=False) == ({}, {})
    gone, dead = watch.look(beat, beating=False)
    assert gone == {"t1": Cause.WORKER_DEAD, "t2": Cause.SWALLOWED}
    assert dead == {"w1": "i1"}


def test_an_observer_that_looks_often_enough_is_not_fooled_by_gaps() -> None:
    """Looks half a lease apart still count: the pause rule must not make everybody immortal."""
    watch = Watch()
    watch.hold("t1")
    beat = worker(held=("t1",))
    watch.look(beat, seconds=15.0)
    assert watch.look(beat, seconds=15.0, beating=False) == ({}, {})
    assert watch.look(beat, seconds=15.0, beating=False)[1] == {"w1": "i1"}


def test_an_answer_that_took_long_is_judged_by_when_it_was_asked_for() -> None:
    """What arrives late may be old: a worker may have beaten since."""
    watch = Watch()
    watch.look(worker())
    for _ in range(4):
        watch.look(worker(), beating=False)
    record = worker(renewals=1)
    assert watch.liveness.look([record], asked=29.0, now=39.0) == ([], {})
    assert watch.liveness.look([record], asked=35.0, now=39.0)[1] == {"w1": "i1"}


def test_a_live_workers_claim_stands_against_another_claim() -> None:
    watch = Watch()
    hold = watch.hold("t1")
    watch.look(worker("w1", held=("t1",)), worker("w2"))
    watch.look(worker("w1", held=("t1",)), worker("w2", held=("t1",)))
    assert hold.worker == "w1"


def test_what_is_listed_but_unknown_is_ignored() -> None:
    watch = Watch()
    assert watch.look(worker(held=("settled long ago",))) == ({}, {})


def test_capacity_of_live_draining_and_silent_workers() -> None:
    """A draining worker counts with its busy slots; a silent one's free slots are withheld."""
    watch = Watch()
    for token in ("t1", "t2", "t3"):
        watch.hold(token)
    records = [
        worker("w1", slots={"default": 4}, held=("t1",)),
        worker("w2", slots={"default": 4}, held=("t2", "t3"), draining=True),
        worker("w3", slots={"default": 4, "renders": 2}),
    ]
    watch.look(*records)
    assert watch.liveness.capacities(watch.now) == {"default": Capacity(10, 0), "renders": Capacity(2, 0)}
    assert watch.liveness.capacities(watch.now + 21.0) == {"default": Capacity(10, 7), "renders": Capacity(2, 2)}


def test_a_draining_workers_settled_attempt_takes_its_slot_along() -> None:
    watch = Watch()
    watch.hold("t1")
    watch.look(worker(slots={"default": 4}, held=("t1",), draining=True))
    assert watch.liveness.capacities(watch.now)["default"] == Capacity(1, 0)
    watch.liveness.changed = False
    watch.liveness.remove("t1")
    assert watch.liveness.changed, "so that the engine asks again"
    assert watch.liveness.capacities(watch.now)["default"] == Capacity(0, 0)


# --- the same through the engine: what becomes of the jobs


def test_a_lost_workers_attempt_is_attempt_two_at_the_head_of_its_lane() -> None:
    desk = Desk()
    first, second = desk.submit(number=2)
    desk.join("w1")
    desk.turn()
    desk.take("w1")
    desk.beat("w1")
    desk.join("w2", slots=1)
    desk.pass_time(1.0, step=1.0, beating=["w1", "w2"])
    (running,) = desk.take("w2")
    made = desk.pass_time(35.0, beating=["w2"])
    started = [dispatch for commit in made for dispatch in commit.dispatches]
    assert [requeue.losses for commit in made for requeue in commit.requeues] == [1]
    assert {name for commit in made for name in commit.forget_workers} == {"w1"}
    assert "w1" not in desk.store.workers
    assert not desk.beat("w1"), "who was declared dead must join again"
    assert started == [], "w2 is busy with the second job"
    heads = [entry.head for entry in desk.store.lanes[ACME]]
    assert [(head.job_id, head.attempts, head.losses) for head in heads] == [(first, 1, 1)]  # type: ignore[union-attr]
    assert running.header.job_id == second
    desk.finish(running, name="w2")
    desk.turn()
    assert [(attempt.header.job_id, attempt.number) for attempt in desk.take("w2")] == [(first, 2)]
    desk.check()


def test_a_late_report_of_a_lost_attempt_is_a_zombies() -> None:
    desk = Desk()
    desk.submit()
    desk.join("w1")
    desk.turn()
    (attempt,) = desk.take("w1")
    desk.beat("w1")
    desk.pass_time(40.0)
    desk.finish(attempt, name="w1")
    desk.turn()
    assert desk.counters.zombies == 1
    assert desk.counters.succeeded == 0
    assert len(desk.store.lanes[ACME]) == 1


def test_an_unclaimed_attempt_leaves_the_pools_stream_and_costs_nothing() -> None:
    """Nobody reads the pool's stream though a worker beats: the job goes back, entry and all, without blame."""
    desk = Desk()
    desk.submit()
    desk.join("w1")
    desk.turn()
    assert len(desk.store.undelivered["default"]) == 1
    desk.pass_time(26.0, step=2.0, beating=["w1"])
    assert len(desk.store.leases) == 1
    desk.pass_time(6.0, step=2.0, beating=["w1"])
    (lease,) = desk.store.leases.values()
    assert (lease.attempt, lease.header.losses) == (2, 0), "it was given back and started again"
    assert len(desk.store.undelivered["default"]) == 1, "the first attempt's entry is gone"
    assert desk.counters.returned == 1
    view = desk.engine.backlog.pools["default"].scheduler.view(("acme",))
    assert view is not None
    assert view.charged == pytest.approx(lease.charged), "the attempt that nobody ran is refunded"
    desk.check()


def test_a_takeover_waits_one_full_lease_before_it_declares_anybody_dead() -> None:
    """A new leader has not watched anybody: the old one's observations die with it."""
    desk = Desk()
    desk.submit()
    desk.join("w1")
    desk.turn()
    desk.take("w1")
    desk.beat("w1")
    desk.pass_time(25.0)
    desk.load()
    desk.pass_time(28.0)
    assert len(desk.store.leases) == 1
    assert "w1" in desk.store.workers
    desk.pass_time(5.0)
    assert desk.store.leases == {}
    assert "w1" not in desk.store.workers


def test_wall_clock_jumps_change_nothing() -> None:
    """Only the monotonic clock judges; a wall clock that jumps by hours kills nobody."""
    desk = Desk()
    desk.submit()
    desk.join("w1")
    desk.turn()
    desk.take("w1")
    desk.beat("w1")
    desk.look()
    for wall in (1.7e9 + 7200.0, 1.7e9 - 7200.0):
        assert desk.engine.step(desk.clock.now, wall) is None or desk.store.leases
        desk.look()
    assert len(desk.store.leases) == 1


def test_a_draining_worker_gets_nothing_new_and_its_slots_go_as_its_jobs_end() -> None:
    desk = Desk()
    desk.submit(number=10)
    desk.join("w1", slots=2)
    desk.turn()
    attempts = desk.take("w1")
    desk.beat("w1", draining=True)
    desk.turn()
    scheduler = desk.engine.backlog.pools["default"].scheduler
    assert (scheduler.slots, scheduler.free) == (2, 0)
    desk.finish(attempts[0])
    desk.turn()
    assert (scheduler.slots, scheduler.free, scheduler.running) == (1, 0, 1)
    desk.finish(attempts[1])
    desk.leave("w1")
    desk.turn()
    assert (scheduler.slots, scheduler.running) == (0, 0)
    assert len(desk.store.lanes[ACME]) == 8
    desk.check()


def test_a_hundred_workers_that_vanish() -> None:
    """Each lost job is back at the head of its own project as attempt 2; the twenty that live go on."""
    desk = Desk()
    lanes = [Lane("default", (f"org-{number}", "p")) for number in range(12)]
    for lane in lanes:
        desk.submit(lane, 40, estimate=60.0)
    names = [f"w{number}" for number in range(120)]
    for name in names:
        desk.join(name)
    desk.turn()
    for name in names:
        desk.take(name, limit=1)
        desk.beat(name)
    desk.look()
    alive = names[:20]
    lost = {attempt.header.job_id for name in names[20:] for attempt in desk.taken[name]}
    assert len(lost) == 100
    desk.pass_time(36.0, beating=alive)
    assert len(desk.store.leases) == 20
    for lane in lanes:
        heads = [entry.head for entry in desk.store.lanes[lane]]
        back = [head for head in heads if head.attempts]  # type: ignore[union-attr]
        assert heads[: len(back)] == back, "they are at the head"
        assert [head.sequence for head in back] == sorted(head.sequence for head in back)  # type: ignore[union-attr]
        lost -= {head.job_id for head in back}  # type: ignore[union-attr]
    assert lost == set()
    desk.check()
