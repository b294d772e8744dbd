"""Fail the N-th call of a world, for N = 1, 2, ... until a run is clean: before it is carried out, and after.

Either its caller sees no more than that the store did not answer, or it dies there, and begins anew.

Every call of every participant is counted: of dispatcher, worker and client. The world is small and nothing else goes
wrong in it, so whatever is wrong in the end comes of that one call.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from drr.model import RetryPolicy
from tests.world.jobs import KEPT, Order
from tests.world.network import Fate
from tests.world.scene import Scene
from tests.world.world import Report, run_scene

MOST = 2000
ORDERS = [
    (0.0, Order(1, "acme/web", 0.1, waits=True, options={"result_ttl": KEPT, "estimate": 0.1})),
    (0.0, Order(2, "globex/mail", 0.1, options={"result_ttl": KEPT, "estimate": 0.3})),
    (0.0, Order(3, "globex/mail", 0.1, 1, options={"result_ttl": KEPT, "retry": RetryPolicy(2, delay=0.1)})),
    (0.0, Order(4, "initech/web", 0.2, 9, options={"result_ttl": KEPT})),
    (0.1, Order(5, "initech/web", 9.0, cancel_after=0.3, options={"result_ttl": KEPT})),
    (0.0, Order(6, "acme/web", 0.1, cancel_after=0.0, options={"result_ttl": KEPT, "delay": 30.0})),
    (0.0, Order(7, "acme/web", 0.1, options={"result_ttl": KEPT, "delay": 0.4})),
    (0.0, Order(8, "acme/web", 5.0, options={"result_ttl": KEPT, "timeout": 0.2})),
    (0.0, Order(9, "acme/web", 0.1, options={"result_ttl": KEPT, "deadline": timedelta(seconds=20)})),
]


def run(number: int, how: Fate) -> Report:
    """Run the small world with its ``number``-th call going wrong."""
    return run_scene(Scene("every call", 1, [2], [ORDERS], fail_at=number, fail_how=how))


WAYS = [Fate.LOST, Fate.REPLY_LOST, Fate.KILLED_BEFORE, Fate.KILLED_AFTER]


@pytest.mark.parametrize("how", WAYS, ids=lambda how: how.value.replace(" ", "-"))
def test_every_call_may_fail(how: Fate) -> None:
    failures: Counter[str] = Counter()
    for number in range(1, MOST):
        report = run(number, how)
        assert not report.wrong, f"call {number}, {report.failed}: {report.wrong}"
        if not report.failed:
            break
        failures[report.failed] += 1
    else:
        raise AssertionError("no run was ever clean")
    assert report.acknowledged == len(ORDERS)
    assert report.attempts >= len(ORDERS) - 1
    for kind in ("commit", "submit", "report", "heartbeat", "join", "read_attempts", "receive", "elect", "load"):
        assert failures[kind], f"{kind} never failed"
    assert failures["commit"] >= 10, failures
