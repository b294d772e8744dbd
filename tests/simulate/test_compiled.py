"""The compiled core decides and reports what its source does, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.traces import trace, write
from drr.core import is_compiled
from drr.simulate.policies import POLICIES

ROOT = Path(__file__).parents[2]
SOURCE = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'backends'}"}

pytestmark = pytest.mark.skipif(not is_compiled(), reason="the core is not compiled here; make test-compiled")

PLANS = """
default_plan = "free"
[plans.free]
soft_cap = "30%"
[plans.pro]
weight = 3
floor = 1
[organisations]
o001 = { plan = "pro" }
o002 = { plan = "free", hard_cap = 2 }
"""


def drr(*arguments: str, **environment: str) -> str:
    """Run a command outside of this checkout's directory, and return what it prints."""
    command = [sys.executable, "-P", "-c", "from drr.cli import main; main()", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    return done.stdout


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "wrong"])
def test_it_gives_the_same_bytes_as_its_source(exact: bool, tmp_path: Path) -> None:
    assert "compiled" in drr("--version")
    assert "compiled" not in drr("--version", **SOURCE)
    write(tmp_path / "trace.csv", trace(4_000, 60, seed=5, exact=exact))
    (tmp_path / "plans.toml").write_text(PLANS)
    options = [
        *("simulate", str(tmp_path / "trace.csv"), "--load", "1.2", "--plans", str(tmp_path / "plans.toml")),
        *("--policy", ",".join(POLICIES), "--seed", "1", "--tenants", "--json"),
    ]
    compiled, source = drr(*options), drr(*options, **SOURCE)
    assert len(source) > 10_000
    assert compiled == source
