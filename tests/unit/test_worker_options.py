"""Settings of a worker are refused at the start, with the values and the remedy in the message."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from drr.errors import InvalidConfiguration, InvalidName
from drr.model import check_name
from drr.worker import Worker
from drr.worker.options import check_heartbeat, default_name


@pytest.mark.parametrize("heartbeat", [5400.0, 3600.0, 0.0, -1.0, 1201.0, float("nan"), float("inf"), True, "10"])
def test_D12_a_heartbeat_not_well_below_the_lease_is_refused_naming_both(heartbeat: Any) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        Worker("memory://", lease=3600.0, heartbeat=heartbeat)
    assert caught.value.what == "heartbeat"
    assert repr(heartbeat) in str(caught.value)
    assert "lease of 3600.0 s" in str(caught.value)
    assert "at most a third" in str(caught.value)


@pytest.mark.parametrize("heartbeat", [1200.0, 1.0])
def test_D12_a_heartbeat_well_below_the_lease_is_accepted(heartbeat: float) -> None:
    assert check_heartbeat(3600.0, heartbeat) == heartbeat


@pytest.mark.parametrize("lease", [0.1, 1.0, 7.0, 30.0, 3600.0])
def test_the_default_heartbeat_is_a_third_of_the_lease_and_accepted_itself(lease: float) -> None:
    assert check_heartbeat(lease, check_heartbeat(lease, None)) == pytest.approx(lease / 3)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"slots": 0}, "slots of pool default"),
        ({"slots": 2.5}, "slots of pool default"),
        ({"slots": True}, "slots of pool default"),
        ({"pools": {"renders": -1}}, "slots of pool renders"),
        ({"pools": {}}, "pools"),
        ({"pools": {"default": 1}, "slots": 4}, "slots"),
        ({"lease": 0.0}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"grace": -1.0}, "grace"),
        ({"patience": float("inf")}, "patience"),
        ({"blocked_after": 0.0}, "blocked_after"),
        ({"blocked_after": float("inf")}, "blocked_after"),
        ({"payload_limit": 0}, "payload limit"),
        ({"result_limit": 1 << 30}, "result limit"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        Worker("memory://", **settings)
    assert caught.value.what == what


@pytest.mark.parametrize("settings", [{"name": "a b"}, {"namespace": "{x}"}, {"pools": {"a:b": 1}}])
def test_names_outside_the_alphabet_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidName):
        Worker("memory://", **settings)


def test_slots_are_those_of_the_default_pool() -> None:
    assert Worker("memory://", slots=4).slots == {"default": 4}
    assert Worker("memory://").slots == {"default": 1}
    assert Worker("memory://", pools={"renders": 2}).slots == {"renders": 2}


def test_default_names_are_valid_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "höst name:" + "x" * 300)
    rng = Random(1)
    first, second = default_name(rng), default_name(rng)
    assert check_name("worker", first) == first
    assert first != second


def test_a_worker_with_other_options_keeps_the_rest_and_shares_the_tasks() -> None:
    worker = Worker("memory://one", slots=4, lease=60.0, grace=5.0)
    other = worker.with_options(store="memory://other", name="w2", pools={"renders": 2})
    worker.task("added-later")(print)
    assert (other.name, other.slots) == ("w2", {"renders": 2})
    assert other.tasks is worker.tasks
    assert worker.slots == {"default": 4}
    with pytest.raises(InvalidConfiguration, match=r"lease of 60.0 s"):
        worker.with_options(heartbeat=30.0)
