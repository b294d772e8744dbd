"""Each broken rule must fail the check that is meant to catch it, and the sound core must pass the same check."""

from __future__ import annotations

import pytest

from tests.sim.bounds import Unfair
from tests.sim.controls import CONTROLS, Control

NAMES = [control.name for control in CONTROLS]


@pytest.mark.source
@pytest.mark.parametrize("control", CONTROLS, ids=NAMES)
def test_a_broken_rule_is_caught(control: Control) -> None:
    with pytest.raises(Unfair, match=r"a against b|gained"):
        control.run(broken=True)


@pytest.mark.parametrize("control", CONTROLS, ids=NAMES)
def test_the_sound_core_passes_the_same_check(control: Control) -> None:
    control.run(broken=False)


def test_every_control_that_is_promised_is_there() -> None:
    assert set(NAMES) == {
        "FIFO",
        "round robin by job count",
        "settlement left out",
        "refunds clamped",
        "debt reset on empty",
        "a newcomer turn at every drain",
        "all lost attempts refunded",
        "a ceiling that clamps in the ring",
    }
