"""The negative controls: with a safeguard taken away, one of a few worlds has to go wrong in the expected way."""

from __future__ import annotations

import re

import pytest

from tests.world.controls import CONTROLS
from tests.world.world import run_world

SEEDS = 40
"""Most worlds that a broken rule may survive."""


@pytest.mark.parametrize("name", CONTROLS)
def test_a_broken_rule_is_caught(name: str) -> None:
    control = CONTROLS[name]
    for seed in (control.seed, *range(SEEDS)):
        with control.broken():
            report = run_world(seed)
        if any(re.search(control.found, line) for line in report.wrong):
            break
    else:
        pytest.fail(f"{SEEDS} worlds did not mind: {name}")
    assert not run_world(seed).wrong, "with the rule in place the same world is right"
