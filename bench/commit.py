"""What one pass costs in the store: server time and client time per job, by size of the batch.

Every pass settles the jobs of the pass before, moves one job from each of as many lanes to the pool, stores
the accounts of all nodes on their paths and reads the next headers, in one round trip; between two passes a
worker reads the pool stream. Both times are CPU time: of the server's main thread, and of this process. The last
line is a JSON object.

    python bench/commit.py [--binary valkey-server] [--passes 40]
"""

from __future__ import annotations

import argparse
import json
import time

import anyio

from drr.backend import Commit, Dispatch, Peek, Position, Settlement, Window, WorkerRecord
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.model import Completion, Header, JobSpec, JobState, Lane, Lease, NodeState
from drr_backends.redis import RedisBackend, open_redis

TOKEN = "1:bench"
PAYLOAD = b"x" * 200
FULL = 1000


async def server_seconds(backend: RedisBackend) -> float:
    """CPU seconds that the server's main thread has used so far, network included."""
    facts = (await backend.link.call("INFO", "cpu")).decode().splitlines()
    parts = ("used_cpu_user_main_thread:", "used_cpu_sys_main_thread:")
    return sum(float(line.partition(":")[2]) for line in facts if line.startswith(parts))


async def submit(backend: RedisBackend, lanes: list[Lane], each: int) -> dict[str, float]:
    """Fill the lanes and return what a job costs to submit."""
    jobs = [JobSpec(lane, "work", PAYLOAD, 1.7e9, estimate=1.0) for _ in range(each) for lane in lanes]
    server, client, wall = await server_seconds(backend), time.process_time(), time.perf_counter()
    for call, start in enumerate(range(0, len(jobs), FULL)):
        await backend.submit("bench", call, jobs[start : start + FULL])
    wall, client = time.perf_counter() - wall, time.process_time() - client
    server = await server_seconds(backend) - server
    return {
        "submit_server_us": server / len(jobs) * 1e6,
        "submit_client_us": client / len(jobs) * 1e6,
        "submit_per_s": len(jobs) / wall,
    }


def next_pass(number: int, windows: list[Window], running: list[Lease]) -> tuple[Commit, list[Lease]]:
    """The pass that settles what runs and dispatches the head of every window."""
    now = 1.7e9 + number
    leases: list[Lease] = []
    nodes: dict[tuple[str, tuple[str, ...]], NodeState | None] = {("default", ()): NodeState(round=number)}
    for window in windows:
        header = window.entries[0]
        assert isinstance(header, Header)
        leases.append(Lease(f"1-{header.sequence}-1", header, 1, now, 1.0))
        nodes["default", header.lane.path] = nodes["default", header.lane.path[:1]] = NodeState(0.25, number, number)
    ended = [Settlement(lease, Completion(JobState.SUCCEEDED, 1, now, 0.5)) for lease in running]
    dispatches = [Dispatch(lease.header, lease) for lease in leases]
    return Commit(TOKEN, number, Position(), ended, dispatches=dispatches, nodes=nodes), leases


async def drive(backend: RedisBackend, lanes: list[Lane], passes: int) -> dict[str, float]:
    """Run passes over the lanes and return what a job costs."""
    peeks = [Peek(lane, 0, 1) for lane in lanes]
    windows = await backend.peek(peeks)
    running: list[Lease] = []
    client = reads = 0.0
    server = await server_seconds(backend)
    for number in range(1, passes + 1):
        commit, leases = next_pass(number, windows, running)
        start = time.process_time()
        windows = await backend.commit(commit, peeks)
        client += time.process_time() - start
        start = time.process_time()
        found = await backend.read_attempts("w", "i", "default", FULL, 0)
        reads += time.process_time() - start
        assert len(found) == len(leases)
        running = leases
    server = await server_seconds(backend) - server
    jobs = passes * len(lanes)
    return {
        "server_us": server / jobs * 1e6,
        "commit_client_us": client / jobs * 1e6,
        "worker_read_client_us": reads / jobs * 1e6,
    }


async def main(binary: str, passes: int) -> None:
    """Print a table by batch size, and its content as JSON."""
    table: dict[int, dict[str, float]] = {}
    with EmbeddedServer(binary=binary, appendfsync=None) as server:
        for batch in (1, 10, 50, 250, 1000):
            backend = open_redis(server.url, f"bench-{batch}", SystemClock())
            await backend.prepare()
            assert await backend.elect("", TOKEN)
            await backend.join(WorkerRecord("w", "i", {"default": FULL}))
            lanes = [Lane("default", (f"org{number}", "web")) for number in range(batch)]
            table[batch] = await submit(backend, lanes, passes + 1) | await drive(backend, lanes, passes)
            row = "  ".join(f"{name} {value:9.1f}" for name, value in table[batch].items())
            print(f"batch {batch:5}  {row}")
            await backend.close()
    print(
        json.dumps(
            {str(batch): {name: round(value, 2) for name, value in row.items()} for batch, row in table.items()}
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="valkey-server", help="server to measure, a name or a path")
    parser.add_argument("--passes", type=int, default=40, help="passes per batch size")
    arguments = parser.parse_args()
    anyio.run(main, arguments.binary, arguments.passes)
