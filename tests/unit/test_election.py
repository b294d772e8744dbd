"""When a dispatcher stands for election, and under which token."""

from __future__ import annotations

from itertools import count

from drr.backend import LeaderRecord
from drr.dispatcher.election import Election

LEASE = 3.0


def election() -> Election:
    numbers = count(1)
    return Election(LEASE, lambda: f"id{next(numbers)}")


def test_nobody_leads() -> None:
    """An empty record is an open office: stand at once, as epoch 1."""
    assert election().look(LeaderRecord(), 100.0) == ("", "1:id1")


def test_a_resignation_is_answered_at_once() -> None:
    """The epoch goes on from the last leader's."""
    e = election()
    assert e.look(LeaderRecord("7:x", 5), 0.0) is None
    assert e.look(LeaderRecord("", 5), 0.5) == ("", "8:id1")


def test_a_live_leader_is_left_alone() -> None:
    e = election()
    for beat in range(100):
        assert e.look(LeaderRecord("1:x", beat), beat * 1.0) is None


def test_a_leader_whose_counter_stands_still_for_one_leader_lease_is_replaced() -> None:
    e = election()
    for tenth in range(30):
        assert e.look(LeaderRecord("4:x", 9), tenth / 10) is None
    assert e.look(LeaderRecord("4:x", 9), 3.0) == ("4:x", "5:id1")


def test_a_new_leader_gets_a_lease_of_its_own() -> None:
    e = election()
    for second in range(3):
        e.look(LeaderRecord("4:x", 9), second * 1.0)
    assert e.look(LeaderRecord("5:y", 0), 3.0) is None
    assert e.look(LeaderRecord("5:y", 0), 4.0) is None


def test_a_standby_that_was_stopped_deposes_nobody() -> None:
    """After a gap in its own looks it has to watch for a whole leader lease again."""
    e = election()
    assert e.look(LeaderRecord("4:x", 9), 0.0) is None
    assert e.look(LeaderRecord("4:x", 9), 60.0) is None
    for tenth in range(1, 30):
        assert e.look(LeaderRecord("4:x", 9), 60.0 + tenth / 10) is None
    assert e.look(LeaderRecord("4:x", 9), 63.0) is not None


def test_ones_own_former_self_is_replaced_at_once() -> None:
    """Its memory was dropped, so it leads nothing: no need to wait for its lease."""
    e = election()
    bid = e.look(LeaderRecord(), 0.0)
    assert bid is not None
    assert e.look(LeaderRecord(bid[1], 3), 1.0) == (bid[1], "2:id2")


def test_an_election_whose_reply_was_lost_is_recognised_as_ones_own() -> None:
    """Two bids in a row of which one won unheard: either may be on record."""
    e = election()
    first = e.look(LeaderRecord(), 0.0)
    second = e.look(LeaderRecord(), 0.1)
    assert first is not None
    assert second is not None
    assert e.look(LeaderRecord(first[1]), 0.2) is not None
    assert e.look(LeaderRecord(second[1]), 0.3) is not None


def test_tokens_are_unique_and_epochs_rise() -> None:
    e = election()
    tokens = [bid[1] for second in range(50) if (bid := e.look(LeaderRecord(), second * 1.0))]
    assert len(set(tokens)) == 50
    assert [int(token.partition(":")[0]) for token in tokens] == list(range(1, 51))


def test_a_token_that_is_no_token_does_no_harm() -> None:
    """What stands in the store may be anything; it is compared, and its epoch read if it has one."""
    e = election()
    assert e.look(LeaderRecord("nonsense", 1), 0.0) is None
    for second in range(1, 4):
        e.look(LeaderRecord("nonsense", 1), second * 1.0)
    assert e.look(LeaderRecord("9" * 400 + ":x", 1), 4.0) is None
