"""What a worker has in its hands: every attempt ends once, nothing leaves the heartbeat too early."""

from __future__ import annotations

import pytest

from drr.backend import Attempt, Event, EventKind
from drr.model import Header, Lane
from drr.worker.state import REPORT_BYTES, Hands, Holding, Reported

LANE = Lane("default", ("acme", "web"), 5)


def attempt(token: str) -> Attempt:
    return Attempt("delivery", token, 1, Header(LANE, 1, "nonce", "work", 0.0), b"")


def joined(slots: int = 2) -> Hands:
    hands = Hands("w1", {"default": slots})
    hands.begin("i1")
    hands.open = True
    return hands


def take(hands: Hands, *tokens: str, now: float = 10.0) -> list[Holding]:
    return hands.take("default", [attempt(token) for token in tokens], now)


def finish(hands: Hands, holding: Holding, now: float = 11.0, value: bytes = b"") -> None:
    hands.finish(holding, hands.event(holding, EventKind.SUCCEEDED, now, value))


def event(token: str, value: bytes = b"") -> Event:
    return Event(token, EventKind.SUCCEEDED, "w1", 1.0, value)


def test_an_attempt_is_held_until_its_report_is_acknowledged() -> None:
    hands = joined()
    [holding] = take(hands, "a")
    assert hands.record().held == ("a",)
    finish(hands, holding)
    assert hands.room("default") == 2, "the slot is free at once"
    assert hands.record().held == ("a",), "but the token stays in the heartbeat"
    batch = hands.batch()
    assert [(e.token, e.kind, e.seconds) for e in batch] == [("a", EventKind.SUCCEEDED, 1.0)]
    assert hands.record().held == ("a",)
    hands.acknowledge(batch)
    assert hands.record().held == ()
    assert hands.idle


def test_a_report_that_was_not_acknowledged_is_offered_again_with_what_came_since() -> None:
    hands = joined()
    first, second = take(hands, "a", "b")
    finish(hands, first)
    assert [e.token for e in hands.batch()] == ["a"]
    finish(hands, second)
    assert [e.token for e in hands.batch()] == ["a", "b"]


def test_room_is_what_is_not_busy() -> None:
    hands = joined(slots=3)
    take(hands, "a", "b")
    assert hands.room("default") == 1


def test_what_does_not_fit_is_handed_back_at_once() -> None:
    hands = joined(slots=1)
    assert [h.attempt.token for h in take(hands, "a", "b")] == ["a"]
    assert [(e.token, e.kind) for e in hands.batch()] == [("b", EventKind.RETURNED)]
    assert hands.record().held == ("a", "b")


@pytest.mark.parametrize("flag", ["stopping", "giving_back", "lapsed"])
def test_what_arrives_when_nothing_is_taken_is_handed_back(flag: str) -> None:
    hands = joined()
    setattr(hands, flag, True)
    assert hands.room("default") == 0
    assert take(hands, "a") == []
    assert [e.kind for e in hands.batch()] == [EventKind.RETURNED]


def test_pending_entries_that_are_in_hand_are_passed_over() -> None:
    hands = joined()
    [holding] = take(hands, "a")
    assert take(hands, "a") == []
    finish(hands, holding)
    assert take(hands, "a") == [], "finished, and its report is on its way"
    assert [e.token for e in hands.batch()] == ["a"], "once"


def test_pending_entries_that_were_reported_are_reported_again_and_not_run_again() -> None:
    hands = joined()
    [holding] = take(hands, "a")
    finish(hands, holding, value=b"result")
    hands.acknowledge(hands.batch())
    assert take(hands, "a") == []
    assert [(e.token, e.value) for e in hands.batch()] == [("a", b"result")]
    hands.acknowledge(hands.batch())
    assert hands.idle


def test_void_attempts_leave_the_heartbeat_and_are_never_reported() -> None:
    hands = joined()
    running, ended = take(hands, "a", "b")
    finish(hands, ended)
    in_flight = hands.batch()
    hands.void()
    hands.begin("i2")
    assert hands.record().held == ()
    hands.acknowledge(in_flight)  # the report was on its way when the incarnation was refused
    finish(hands, running)
    assert hands.batch() == []
    assert hands.idle


def test_a_void_handler_keeps_its_slot_out_of_the_record_until_it_is_gone() -> None:
    hands = joined(slots=2)
    [holding] = take(hands, "a")
    hands.void()
    hands.begin("i2")
    assert hands.room("default") == 1
    assert hands.record().slots == {"default": 1}
    finish(hands, holding)
    assert hands.room("default") == 2
    assert hands.record().slots == {"default": 2}


def test_only_the_present_incarnation_can_be_refused() -> None:
    hands = joined()

    def state() -> tuple[bool, bool]:
        return hands.is_refused, hands.taking

    hands.refused = "i0"
    assert state() == (False, True)
    hands.refused = "i1"
    assert state() == (True, False)
    hands.begin("i2")
    assert state() == (False, True)


def test_an_attempt_ends_once() -> None:
    hands = joined()
    [holding] = take(hands, "a")
    finish(hands, holding)
    with pytest.raises(AssertionError, match="once"):
        finish(hands, holding)
    assert hands.room("default") == 2
    assert len(hands.batch()) == 1


def test_a_report_is_bounded_in_bytes_and_in_number() -> None:
    hands = joined(slots=3000)
    big = take(hands, "a", "b", "c")
    for holding in big:
        finish(hands, holding, value=bytes(REPORT_BYTES // 2))
    assert [e.token for e in hands.batch()] == ["a", "b"]
    hands.acknowledge(hands.batch())
    assert [e.token for e in hands.batch()] == ["c"]
    hands.acknowledge(hands.batch())
    for holding in take(hands, *(f"t{number}" for number in range(2500))):
        finish(hands, holding)
    assert len(hands.batch()) == 1000


def test_a_single_result_over_the_bound_still_goes_out() -> None:
    hands = joined()
    for holding in take(hands, "a", "b"):
        finish(hands, holding, value=bytes(2 * REPORT_BYTES))
    assert [e.token for e in hands.batch()] == ["a"]


def test_the_oldest_unannounced_attempt_is_found() -> None:
    hands = joined(slots=3)
    take(hands, "a", now=10.0)
    take(hands, "b", now=12.0)
    assert hands.untold_since(()) == 10.0
    assert hands.untold_since({"a"}) == 12.0
    assert hands.untold_since({"a", "b"}) is None


def test_seconds_are_never_negative() -> None:
    hands = joined()
    [holding] = take(hands, "a", now=10.0)
    assert hands.event(holding, EventKind.FAILED, 9.0).seconds == 0.0


def test_reported_events_are_bounded_in_number() -> None:
    reported = Reported(events=2)
    for token in "abc":
        reported.add(event(token))
    assert "a" not in reported
    assert reported.recall("c") == event("c")


def test_reported_values_are_bounded_in_bytes_but_their_tokens_stay_known() -> None:
    reported = Reported(events=10, size=100)
    reported.add(event("a", bytes(60)))
    reported.add(event("b", bytes(60)))
    assert "a" in reported
    assert reported.recall("a") is None
    assert reported.recall("b") == event("b", bytes(60))


def test_a_forgotten_event_gives_its_bytes_back() -> None:
    reported = Reported(events=1, size=100)
    for token in "abcdef":
        reported.add(event(token, bytes(60)))
        assert reported.recall(token) is not None
