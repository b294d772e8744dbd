"""When a heartbeat is due, when the lease may be gone, and who holds a name: rules in numbers, no clock."""

from __future__ import annotations

from random import Random

import pytest

from drr.backend import WorkerRecord
from drr.worker.pulse import Pulse
from drr.worker.takeover import Sight, Takeover

LEASE = 30.0
INTERVAL = 10.0


def joined(now: float = 100.0) -> Pulse:
    pulse = Pulse(INTERVAL, LEASE, Random(1))
    pulse.joined(now)
    return pulse


def test_a_beat_is_due_once_per_interval() -> None:
    pulse = joined(100.0)
    assert not pulse.due(109.9, None)
    assert pulse.due(110.0, None)
    pulse.accepted(110.0)
    assert not pulse.due(119.9, None)


def test_an_attempt_in_hand_for_a_quarter_of_the_interval_brings_the_beat_forward() -> None:
    pulse = joined(100.0)
    assert not pulse.due(104.0, untold_since=102.0)
    assert pulse.due(104.5, untold_since=102.0)


def test_short_attempts_cause_no_beats_of_their_own() -> None:
    """A worker that always holds something new, for less than a quarter each, beats once per interval."""
    pulse = joined(0.0)
    beats = 0
    for tenth in range(1000):
        now = tenth / 10
        if pulse.due(now, now - 0.1):
            pulse.accepted(now)
            beats += 1
    assert beats == 9


def test_it_is_asked_often_enough_to_be_early() -> None:
    assert joined(100.0).pause(100.0) == INTERVAL / 4
    assert joined(100.0).pause(109.5) == pytest.approx(0.5)
    assert joined(100.0).pause(111.0) == 0.0


def test_a_failed_beat_is_repeated_with_growing_pauses_below_half_an_interval() -> None:
    pulse = joined(100.0)
    now, pauses = 110.0, []
    for _ in range(8):
        assert pulse.due(now, None)
        pulse.failed(now)
        waited = 0.0
        while not pulse.due(now, now - INTERVAL):  # the unannounced do not press while the store is away
            step = pulse.pause(now)
            waited += step
            now += step
        pauses.append(waited)
    assert pauses[0] < 0.6
    assert max(pauses) <= INTERVAL / 2
    assert pauses[0] < pauses[2] < pauses[4]


def test_the_lease_lapses_one_lease_after_the_last_accepted_beat_was_sent() -> None:
    pulse = joined(100.0)
    pulse.accepted(110.0)
    pulse.failed(120.0)
    assert not pulse.lapsed(140.0)
    assert pulse.lapsed(140.1)
    pulse.accepted(141.0)
    assert not pulse.lapsed(141.0)


def test_news_hurry_the_beat() -> None:
    pulse = joined(100.0)
    pulse.hurry(101.0)
    assert pulse.due(101.0, None)


def record(renewals: int, incarnation: str = "old") -> WorkerRecord:
    return WorkerRecord("w1", incarnation, {"default": 1}, renewals=renewals)


def test_a_counter_that_moves_is_a_live_worker() -> None:
    takeover = Takeover(LEASE)
    assert takeover.look(record(7), 0.0) is Sight.UNKNOWN
    assert takeover.look(record(7), 10.0) is Sight.UNKNOWN
    assert takeover.look(record(8), 11.0) is Sight.ALIVE


def test_a_counter_that_stands_still_for_a_lease_is_a_dead_worker() -> None:
    takeover = Takeover(LEASE)
    takeover.look(record(7), 0.0)
    assert takeover.look(record(7), 30.0) is Sight.UNKNOWN
    assert takeover.look(record(7), 30.1) is Sight.DEAD


def test_another_incarnation_is_watched_from_the_start() -> None:
    takeover = Takeover(LEASE)
    takeover.look(record(7), 0.0)
    assert takeover.look(record(0, "newer"), 29.0) is Sight.UNKNOWN
    assert takeover.look(record(0, "newer"), 31.0) is Sight.UNKNOWN
    assert takeover.look(record(0, "newer"), 60.0) is Sight.DEAD
