"""The client's role: submit, look up, wait for ends. Needs no dispatcher, and no right to load functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drr.backend import (
    CALLS_KEPT_SECONDS,
    CALLS_RELEASED,
    CALLS_REMEMBERED,
    ITEM_LIMIT,
    USAGE_KEPT_DAYS,
    ChangeRecord,
    DeadLetter,
    Page,
    Request,
    StoredStatus,
    Usage,
    UsageKey,
    Work,
    check_count,
    check_job,
    check_request,
)
from drr.errors import InvalidValue, MalformedMessage, StoreCorrupt
from drr.model import (
    JobSpec,
    JobState,
    JobStatus,
    Lane,
    Settings,
    TenantPath,
    call_nonce,
    check_name,
    check_path,
    parse_job_id,
)
from drr_backends.redis.accounts import decode_change, decode_usage
from drr_backends.redis.codec import decode_delayed, decode_lease
from drr_backends.redis.library import function
from drr_backends.redis.link import Command
from drr_backends.redis.listing import list_jobs
from drr_backends.redis.records import (
    decode_completion,
    decode_leader,
    decode_workers,
    encode_request,
)
from drr_backends.redis.settings import read_settings
from drr_backends.redis.store import Store, by_stream, checked, log, stream_entries
from drr_backends.redis.submission import Batch

MOST_HOURS: Final = 10**9
CALL_MEMORY: Final = int(CALLS_KEPT_SECONDS * 1000)
"""Milliseconds that a client's calls are remembered after its last one."""


class ClientRole(Store):
    """`drr.backend.ClientPort` on Redis."""

    async def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        """See `drr.backend.ClientPort.submit`."""
        check_name("client", client)
        check_count("number of jobs in one submit", len(jobs))
        check_count("call number", call, high=2**53)
        if not jobs:
            return []
        for job in jobs:
            check_job(job)
        batch = Batch(self.keys, jobs, call_nonce(client, call))
        memory = self.keys.calls(client)
        keys = batch.keys_after(memory)
        arguments = (call, len(jobs), CALLS_REMEMBERED, CALL_MEMORY, *batch.arguments())
        command: Command = ("FCALL", function("submit"), len(keys), *keys, *arguments)
        replication = self.address.replication
        if not replication.replicas:
            return batch.ids(await self.link.call(*command, repeatable=True))
        # The expiry is set once more because the server waits for what this connection wrote last, and a call that is
        # repeated on another connection, and recognised there, writes nothing.
        follow = ("PEXPIRE", memory, CALL_MEMORY)
        reply, _, acknowledged = await self.link.calls([command, follow, replication.command], repeatable=True)
        (reply,) = checked([reply])
        ids = batch.ids(reply)
        replication.check(ids, acknowledged)
        return ids

    async def calls(self, client: str) -> list[int]:
        """See `drr.backend.ClientPort.calls`."""
        fields = await self.link.call("HKEYS", self.keys.calls(client), repeatable=True)
        return [int(field) for field in fields if field.isdigit() and len(field) <= 16]

    async def release_calls(self, client: str) -> None:
        """See `drr.backend.ClientPort.release_calls`."""
        await self.link.call("PEXPIRE", self.keys.calls(client), int(CALLS_RELEASED * 1000), repeatable=True)

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
        keys = [self.keys.leases, self.keys.delayed, self.keys.back]
        keys += [self.keys.outcome(sequence, nonce) for _, _, sequence, nonce in asked]
        keys += map(self.keys.lane, lanes)
        args: list[bytes | int] = [len(asked), self.keys.lane_name_from]
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

    async def find(self, path: TenantPath, name: str) -> str | None:
        """See `drr.backend.ClientPort.find`."""
        found = await self.link.call("GET", self.keys.alias(check_path(path), name), repeatable=True)
        return None if found is None else found.decode()

    async def request(self, requests: Sequence[Request]) -> None:
        """See `drr.backend.ClientPort.request`."""
        heavy = any(request.body for request in requests)
        check_count("number of requests", len(requests), high=1 if heavy else ITEM_LIMIT)
        for request in requests:
            check_request(request)
        commands = [("XADD", self.keys.requests, "*", "request", encode_request(request)) for request in requests]
        if commands:
            checked(await self.link.calls(commands, repeatable=True))

    async def progress(self, job_ids: Sequence[str]) -> list[bytes | None]:
        """See `drr.backend.ClientPort.progress`."""
        check_count("number of jobs", len(job_ids))
        if not job_ids:
            return []
        keys = [self.keys.progress(sequence, nonce) for _, sequence, nonce in map(parse_job_id, job_ids)]
        return list(await self.link.call("MGET", *keys, repeatable=True))

    async def waiting(self, paths: Sequence[TenantPath]) -> list[Work]:
        """See `drr.backend.ClientPort.waiting`."""
        if not paths:
            return []
        fields = ["/".join(check_path(path)) for path in paths]
        wanted = [part for field in fields for part in (field, f"{field}#")]
        found = await self.link.call("HMGET", self.keys.depth, *wanted, repeatable=True)
        return [
            Work(int(jobs or 0), int(micros or 0) / 1e6) for jobs, micros in zip(found[::2], found[1::2], strict=True)
        ]

    async def usage(self, organisation: str, since: int, until: int) -> dict[UsageKey, Usage]:
        """See `drr.backend.ClientPort.usage`."""
        check_count("hour that usage begins with", since, high=MOST_HOURS)
        check_count("hour that usage ends before", until, high=MOST_HOURS)
        found_days = await self._days_kept(since, until)
        days = [self.keys.usage(organisation, day) for day in found_days]
        if not days:
            return {}
        found: dict[UsageKey, Usage] = {}
        for flat in checked(await self.link.calls([("HGETALL", day) for day in days], repeatable=True)):
            found |= decode_usage(dict(zip(flat[::2], flat[1::2], strict=True)))
        return {key: usage for key, usage in found.items() if since <= key.hour < until}

    async def _days_kept(self, since: int, until: int) -> range:
        """Return the days of a time that accounts may be kept of, by the store's clock."""
        seconds, _ = await self.link.call("TIME", repeatable=True)
        today = int(seconds) // 86_400
        # One more than now: the leader's clock may be ahead of the store's.
        return range(max(since // 24, today - USAGE_KEPT_DAYS), min((until - 1) // 24, today + 1) + 1)

    async def changes(self, limit: int = 100) -> list[ChangeRecord]:
        """See `drr.backend.ClientPort.changes`."""
        check_count("number of changes", limit)
        lines = await self.link.call("LRANGE", self.keys.changes, 0, limit - 1, repeatable=True) if limit else []
        found: list[ChangeRecord] = []
        for line in lines:
            try:
                found.append(decode_change(line))
            except MalformedMessage as error:
                log.warning("a line of the log of changes is skipped: %s", error)
        return found

    async def settings(self) -> Settings:
        """See `drr.backend.ClientPort.settings`."""
        return read_settings(await self.link.call("GET", self.keys.settings, repeatable=True))

    async def list_jobs(self, path: TenantPath, state: JobState, limit: int = 100, cursor: str = "") -> Page:
        """See `drr.backend.ClientPort.list_jobs`."""
        check_count("limit of a listing", limit, low=1)
        return await list_jobs(self, check_path(path), state, limit, cursor)

    async def dead_letters(self, organisation: str = "", limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """See `drr.backend.ClientPort.dead_letters`."""
        check_count("number of dead letters", limit)
        check_count("number of a dead letter", after, high=2**53)
        if limit == 0:
            return []
        graves = self.keys.graves_of(organisation) if organisation else self.keys.graves
        numbers = await self.link.call(
            "ZRANGEBYSCORE", graves, f"({after}", "+inf", "LIMIT", 0, limit, repeatable=True
        )
        return [letter for letter in await self.read_letters([int(number) for number in numbers]) if letter]

    async def purge_dead(self, numbers: Sequence[int]) -> int:
        """See `drr.backend.ClientPort.purge_dead`."""
        check_count("number of dead letters", len(numbers))
        found = [letter for letter in await self.read_letters(numbers) if letter is not None]
        if not found:
            return 0
        organisations = list(dict.fromkeys(letter.lane.path[0] for letter in found))
        keys = [self.keys.dead, self.keys.graves, *map(self.keys.graves_of, organisations)]
        args = [part for letter in found for part in (letter.number, 3 + organisations.index(letter.lane.path[0]))]
        return int(await self.call("purge", keys, *args))


def _status(job_id: str, lane: Lane, nonce: str, kind: bytes, data: Any) -> JobStatus | None:
    if kind == b"queued":
        return JobStatus(job_id, JobState.QUEUED, int(data))
    try:
        if kind == b"delayed":
            header = decode_delayed(data)
            if header.nonce == nonce and header.lane == lane:
                return JobStatus(job_id, JobState.DELAYED, header.attempts)
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
