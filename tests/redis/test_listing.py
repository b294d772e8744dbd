"""What a page of a listing costs the server, counted in commands that its functions call."""

from __future__ import annotations

import re
import time

import pytest

from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.model import JobState
from drr_backends.redis import RedisBackend, open_redis
from tests.contract.harness import job

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

PAGE = 50
DEPTH = 20_000


async def calls(backend: RedisBackend, command: str) -> int:
    """How often the server has run a command, inside functions too."""
    stats = (await backend.link.call("INFO", "commandstats")).decode()
    found = re.search(rf"cmdstat_{command}:calls=(\d+)", stats)
    return int(found.group(1)) if found else 0


@pytest.mark.parametrize(
    ("state", "command", "delay"), [(JobState.QUEUED, "lindex", 0.0), (JobState.DELAYED, "zrange", 1e5)]
)
async def test_a_page_deep_in_the_queue_looks_at_its_own_jobs(state: JobState, command: str, delay: float) -> None:
    async with EmbeddedServer() as server:
        backend = open_redis(server.url, "drr", SystemClock())
        await backend.prepare()
        due_at = time.time() + delay if delay else 0.0
        ids = [
            job_id
            for call in range(1, DEPTH // 1000 + 1)
            for job_id in await backend.submit("client", call, [job(due_at=due_at)] * 1000)
        ]
        cursor, found = "", []
        for _ in range(DEPTH // 2 // 1000):
            page = await backend.list_jobs(("acme",), state, 1000, cursor)
            found += [listed.job_id for listed in page.jobs]
            cursor = page.cursor
        assert found == ids[: DEPTH // 2]
        before = await calls(backend, command)
        page = await backend.list_jobs(("acme",), state, PAGE, cursor)
        looks = await calls(backend, command) - before
        assert [listed.job_id for listed in page.jobs] == ids[DEPTH // 2 :][:PAGE]
        # Halving 20,000 takes 15 looks, and finding where to halve as many.
        assert 1 <= looks <= 40
        await backend.close()
