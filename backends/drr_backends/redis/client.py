"""The client's role: submit, look up, wait for ends. Needs no dispatcher, and no right to load functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from drr.backend import CALLS_REMEMBERED, ITEM_LIMIT, DeadLetter, StoredStatus, check_count
from drr.errors import InvalidValue, MalformedMessage, StoreCorrupt
from drr.model import JobSpec, JobState, JobStatus, Lane, call_nonce, check_name, parse_job_id
from drr_backends.redis.codec import body_of, decode_lease
from drr_backends.redis.records import decode_completion, decode_dead_letter, decode_leader, decode_workers
from drr_backends.redis.store import Store, by_stream, checked, log, stream_entries

CALL_MEMORY: Final = 24 * 3_600_000
"""Milliseconds that a client's calls are remembered after its last one."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class ClientRole(Store):
    """`drr.backend.ClientPort` on Redis."""

    async def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        """See `drr.backend.ClientPort.submit`."""
        check_name("client", client)
        check_count("number of jobs in one submit", len(jobs))
        check_count("call number", call, high=2**53)
        if not jobs:
            return []
        nonce = call_nonce(client, call)
        lanes: dict[Lane, list[str | int | bytes]] = {}
        keys = self.keys
        for index, job in enumerate(jobs):
            lane = lanes.get(job.lane)
            if lane is None:
                lane = lanes[job.lane] = [str(job.lane)]
            lane += (index, body_of(job, nonce))
        reply = await self.call(
            "submit",
            [keys.sequence, keys.calls(client), keys.active, keys.wake, *map(keys.lane, lanes)],
            call,
            len(jobs),
            CALLS_REMEMBERED,
            CALL_MEMORY,
            _pack(list(lanes.values())),
            repeatable=True,
        )
        first = int(reply)
        heads = {lane: str(lane) for lane in lanes}
        return [f"{heads[job.lane]}:{first + index}~{nonce}" for index, job in enumerate(jobs)]

    async def look_up(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """See `drr.backend.ClientPort.look_up`."""
        check_count("number of jobs to look up", len(job_ids))
        answers: list[JobStatus | None] = [None] * len(job_ids)
        asked: list[tuple[int, Lane, int, str]] = []
        for place, job_id in enumerate(job_ids):
            try:
                lane, sequence, nonce = parse_job_id(job_id)
            except InvalidValue:
                continue
            if sequence < 2**53:
                asked.append((place, lane, sequence, nonce))
        if not asked:
            return answers
        lanes = {lane: number for number, lane in enumerate(dict.fromkeys(lane for _, lane, _, _ in asked), 1)}
        keys = [self.keys.leases]
        keys += [self.keys.outcome(sequence, nonce) for _, _, sequence, nonce in asked]
        keys += map(self.keys.lane, lanes)
        args: list[bytes | int] = [len(asked)]
        for _, lane, sequence, _ in asked:
            args += (sequence.to_bytes(8, "big"), lanes[lane])
        replies = await self.call("look_up", keys, *args, repeatable=True)
        for (place, lane, _, nonce), (kind, data) in zip(asked, replies, strict=True):
            answers[place] = _status(job_ids[place], lane, nonce, kind, data)
        return answers

    async def replies(self, client: str, after: str, block: float) -> tuple[str, list[str]]:
        """See `drr.backend.ClientPort.replies`."""
        key = self.keys.reply(client)
        command = (("XREAD", "COUNT", ITEM_LIMIT), ("STREAMS", key, after or "0-0"))
        reply = await self.blocking_call(("replies", client), block, command)
        ids: list[str] = []
        cursor = after
        for entry_id, fields in stream_entries(by_stream(reply).get(key.encode())):
            cursor = entry_id
            ids += fields.get(b"jobs", b"").decode("utf-8", "replace").splitlines()
        return cursor, ids

    async def read_status(self) -> StoredStatus:
        """See `drr.backend.ClientPort.read_status`."""
        blob, leader, workers = checked(
            await self.link.calls(
                [
                    ("GET", self.keys.status),
                    ("HMGET", self.keys.leader, "token", "renewals", "passes"),
                    ("HGETALL", self.keys.workers),
                ],
                repeatable=True,
            )
        )
        records, faults = decode_workers(workers)
        for fault in faults:
            log.warning("a worker's record is skipped: %s", fault)
        return StoredStatus(blob or b"", decode_leader(leader), tuple(records))

    async def dead_letters(self, limit: int = 100, offset: int = 0) -> list[DeadLetter]:
        """See `drr.backend.ClientPort.dead_letters`."""
        check_count("number of dead letters", limit)
        check_count("offset of dead letters", offset, high=2**53)
        if limit == 0:
            return []
        reply = await self.link.call("LRANGE", self.keys.dead, offset, offset + limit - 1, repeatable=True)
        return [decode_dead_letter(data) for data in reply]


def _status(job_id: str, lane: Lane, nonce: str, kind: bytes, data: Any) -> JobStatus | None:
    if kind == b"queued":
        return JobStatus(job_id, JobState.QUEUED, int(data))
    try:
        if kind == b"outcome":
            completion = decode_completion(data)
            return JobStatus(job_id, completion.state, completion.attempt, completion)
        if kind == b"running":
            lease = decode_lease(data)
            # Numbers are used twice only if the store lost its last moments; then the nonces differ.
            if lease.header.nonce == nonce and lease.header.lane == lane:
                return JobStatus(job_id, JobState.RUNNING, lease.attempt)
    except MalformedMessage as error:
        raise StoreCorrupt(f"what the store holds of job {job_id} cannot be read: {error}") from None
    return None
