"""The dispatcher's role: lead, receive, peek, commit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from drr.backend import (
    ATTENDANCE_MAX,
    ITEM_LIMIT,
    STRIKE_LIMIT,
    Commit,
    DeadLetter,
    DeathCause,
    DueJobs,
    EstimateKey,
    Event,
    Facts,
    LeaderRecord,
    Located,
    Malformed,
    MalformedEvent,
    Peek,
    Position,
    Snapshot,
    Struck,
    Window,
    WorkerRecord,
    check_commit,
    check_count,
    check_peeks,
)
from drr.errors import (
    BackendError,
    InvalidValue,
    MalformedMessage,
    NotLeader,
    StoreNotPrepared,
    StoreUnavailable,
)
from drr.model import UNNAMED_WORK, Header, Lane, Lease, NodeState, TenantPath, check_number, parse_job_id
from drr_backends.redis.accounts import estimate_of
from drr_backends.redis.codec import decode_delayed, decode_entry, decode_head, decode_lease
from drr_backends.redis.keys import lane_of, node_of
from drr_backends.redis.library import SCHEMA, function, library
from drr_backends.redis.link import Command
from drr_backends.redis.passes import PassEncoder
from drr_backends.redis.records import (
    UNKNOWN_LANE,
    decode_events,
    decode_leader,
    decode_node,
    decode_request,
    decode_workers,
    encode_preamble,
)
from drr_backends.redis.server import check_server
from drr_backends.redis.settings import read_settings
from drr_backends.redis.store import Store, by_stream, checked, log, stream_entries

_SCAN_COUNT: Final = 1000


class DispatcherRole(Store):
    """`drr.backend.DispatcherPort` on Redis."""

    _encoder: PassEncoder | None = None

    # --- preparation ----------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """See `drr.backend.DispatcherPort.prepare`.

        The library is loaded beside those of other versions, never in place of one.
        """
        (info,) = await self.link.calls([("INFO", "server")], repeatable=True)
        if isinstance(info, StoreUnavailable):
            raise info
        if not isinstance(info, BackendError):  # forbidden: then the first call that an old server lacks says so
            check_server(info)
        await self._load_library()
        (_, number, _) = checked(
            await self.link.calls(
                [
                    ("HSETNX", self.keys.schema, "number", SCHEMA),
                    ("HGET", self.keys.schema, "number"),
                    ("HSET", self.keys.schema, "library", library().hash),
                ],
                repeatable=True,
            )
        )
        if number != str(SCHEMA).encode():
            raise StoreNotPrepared(
                f"namespace {self.keys.namespace!r} has schema {number.decode(errors='replace')}, "
                f"this version of drr needs {SCHEMA}; use the version that made it, or another namespace"
            )

    async def _load_library(self) -> None:
        found = await self.link.call("FUNCTION", "LIST", "LIBRARYNAME", library().name, repeatable=True)
        if not found:
            (reply,) = await self.link.calls([("FUNCTION", "LOAD", library().source)])
            # Another dispatcher may have been quicker.
            if isinstance(reply, Exception) and "already exists" not in str(reply):
                raise reply

    async def _lead(
        self, operation: str, keys: Sequence[str], *args: str | bytes | int, repeatable: bool = False
    ) -> Any:
        """Call a function; if the server has lost its libraries, load this one again first."""
        try:
            return await self.call(operation, keys, *args, repeatable=repeatable)
        except StoreNotPrepared:
            # Nothing was done by a function that is not there, so this is no repetition.
            await self._load_library()
            return await self.call(operation, keys, *args, repeatable=repeatable)

    # --- leadership -----------------------------------------------------------------------------------

    async def leader(self) -> LeaderRecord:
        """See `drr.backend.DispatcherPort.leader`."""
        return decode_leader(
            await self.link.call("HMGET", self.keys.leader, "token", "renewals", "passes", repeatable=True)
        )

    async def elect(self, expected: str, token: str) -> bool:
        """See `drr.backend.DispatcherPort.elect`."""
        return bool(await self._lead("elect", [self.keys.leader], expected, token))

    async def renew(self, token: str) -> None:
        """See `drr.backend.DispatcherPort.renew`."""
        await self._lead("renew", [self.keys.leader], token)

    async def attend(self, dispatcher: str, seconds: float) -> None:
        """See `drr.backend.DispatcherPort.attend`."""
        check_number("seconds of attendance", seconds, 0.001, ATTENDANCE_MAX)
        await self._lead("attend", [self.keys.attendance(dispatcher)], math.ceil(seconds * 1000))

    async def resign(self, token: str) -> None:
        """See `drr.backend.DispatcherPort.resign`."""
        await self._lead("resign", [self.keys.leader, self.keys.resigned], token)

    async def await_resignation(self, block: float) -> bool:
        """See `drr.backend.DispatcherPort.await_resignation`."""
        # The cursor first: what resigns after it is seen by the read, what resigned before by the record.
        last, leader = checked(
            await self.link.calls(
                [
                    ("XREVRANGE", self.keys.resigned, "+", "-", "COUNT", 1),
                    ("HMGET", self.keys.leader, "token", "renewals", "passes"),
                ],
                repeatable=True,
            )
        )
        if not decode_leader(leader).token:
            return True
        cursor = last[0][0] if last else "0-0"
        command = (("XREAD", "COUNT", 1), ("STREAMS", self.keys.resigned, cursor))
        return await self.blocking_call("resigned", block, command) is not None

    async def _check_leader(self, token: str) -> None:
        found = await self.leader()
        if not token or found.token != token:
            raise NotLeader(f"token {token!r} does not lead (any more)")

    # --- loading --------------------------------------------------------------------------------------

    async def load(self, token: str) -> Snapshot:
        """See `drr.backend.DispatcherPort.load`.

        Nobody but the leader changes what is read here, so several reads make one snapshot; the token is
        checked before and after. Lanes can only be added meanwhile, and are then announced after ``wake``.
        """
        await self._check_leader(token)
        last, position, settings, due = checked(
            await self.link.calls(
                [
                    ("XREVRANGE", self.keys.wake, "+", "-", "COUNT", 1),
                    ("HMGET", self.keys.position, "events", "wake", "requests"),
                    ("GET", self.keys.settings),
                    ("ZRANGE", self.keys.due, 0, 0, "WITHSCORES"),
                ],
                repeatable=True,
            )
        )
        events, wake, requests = ((value or b"").decode() for value in position)
        if last:
            wake = last[0][0].decode()
        lanes = await self._active_lanes()
        leases = await self._leases(token)
        nodes = await self._nodes()
        workers = await self.workers()
        leader = await self.leader()
        if leader.token != token:
            raise NotLeader(f"token {token!r} does not lead any more")
        return Snapshot(
            position=Position(events, wake, requests),
            passes=leader.passes,
            leases=tuple(leases),
            nodes=nodes,
            settings=read_settings(settings),
            workers=tuple(workers),
            lanes=tuple(lanes),
            due_at=float(due[1]) if due else None,
            estimates=await self._estimates(),
        )

    async def _estimates(self) -> dict[EstimateKey, bytes]:
        found: dict[EstimateKey, bytes] = {}
        for field, record in (await self._scan_hash(self.keys.estimates)).items():
            try:
                found[estimate_of(field)] = record
            except MalformedMessage as error:
                log.warning("an estimate is skipped: %s", error)
        return found

    async def _scan(self, command: str, key: str) -> list[bytes]:
        """Return everything in a set or hash, in pieces, so that the server serves others in between."""
        found: list[bytes] = []
        cursor = b"0"
        while True:
            cursor, part = await self.link.call(command, key, cursor, "COUNT", _SCAN_COUNT, repeatable=True)
            found += part
            if cursor == b"0":
                return found

    async def _scan_hash(self, key: str) -> dict[bytes, bytes]:
        flat = await self._scan("HSCAN", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    async def _active_lanes(self) -> list[Lane]:
        lanes: set[Lane] = set()
        for name in await self._scan("SSCAN", self.keys.active):
            try:
                lanes.add(lane_of(name))
            except MalformedMessage as error:
                log.warning("a member of the set of active lanes is skipped: %s", error)
        return sorted(lanes)

    async def _leases(self, token: str) -> list[Lease]:
        leases: list[Lease] = []
        for field, record in sorted((await self._scan_hash(self.keys.leases)).items()):
            if field.startswith(b"#") and len(field) == 9:
                continue  # leads from a job to its lease
            try:
                lease = decode_lease(record)
                if lease.token.encode() != field:
                    raise MalformedMessage("lease", "it is recorded under another token")
            except MalformedMessage as error:
                log.warning("a lease goes to the dead letters: %s", error)
                preamble = encode_preamble(str(UNKNOWN_LANE), str(error), DeathCause.MALFORMED, job=False)
                keys = [
                    self.keys.leader,
                    self.keys.leases,
                    self.keys.dead,
                    self.keys.graves,
                    self.keys.graves_of(UNKNOWN_LANE.path[0]),
                    self.keys.position,
                ]
                await self._lead("discard_lease", keys, token, field, preamble)
            else:
                leases.append(lease)
        return leases

    async def _nodes(self) -> dict[tuple[str, TenantPath], NodeState]:
        nodes: dict[tuple[str, TenantPath], NodeState] = {}
        for field, record in (await self._scan_hash(self.keys.nodes)).items():
            try:
                nodes[node_of(field)] = decode_node(record)
            except MalformedMessage as error:
                log.warning("an account begins anew: %s", error)
        return nodes

    async def workers(self) -> list[WorkerRecord]:
        """See `drr.backend.DispatcherPort.workers`."""
        records, faults = decode_workers(await self.link.call("HGETALL", self.keys.workers, repeatable=True))
        for fault in faults:
            log.warning("a worker's record is skipped: %s", fault)
        return records

    # --- jobs that wait -------------------------------------------------------------------------------

    async def due(self, until: float, limit: int = ITEM_LIMIT) -> DueJobs:
        """See `drr.backend.DispatcherPort.due`. A job that cannot be decoded goes to the dead letters."""
        check_count("number of due jobs", limit, low=1)
        next_at, *flat = await self._lead(
            "due", [self.keys.due, self.keys.delayed], repr(float(until)), limit, repeatable=True
        )
        jobs: list[Header] = []
        for packed, value in zip(flat[::2], flat[1::2], strict=True):
            try:
                header = decode_delayed(value)
                if header.sequence.to_bytes(8, "big") != packed:
                    raise MalformedMessage("job", "it is kept under another number")
                jobs.append(header)
            except MalformedMessage as error:
                await self._discard_delayed(packed, value, str(error))
        return DueJobs(tuple(jobs), float(next_at) if next_at else None)

    async def _discard_delayed(self, packed: bytes, value: bytes, reason: str) -> None:
        log.warning("a delayed job goes to the dead letters: %s", reason)
        try:
            lane = lane_of(value.partition(b"\n")[0])
        except MalformedMessage:
            lane = UNKNOWN_LANE
        keys = self.keys
        changes: list[str | int] = []
        for tenant in ("/".join(lane.path), lane.path[0]):
            changes += (tenant, -1, f"{tenant}#", -round(UNNAMED_WORK * 1e6))
        preamble = encode_preamble(str(lane), reason, DeathCause.MALFORMED, job=False)
        await self._lead(
            "discard_delayed",
            [keys.due, keys.delayed, keys.dead, keys.graves, keys.graves_of(lane.path[0]), keys.position, keys.depth],
            packed,
            preamble,
            *changes,
        )

    async def locate(self, job_ids: Sequence[str]) -> list[Located | None]:
        """See `drr.backend.DispatcherPort.locate`."""
        check_count("number of jobs to locate", len(job_ids), high=STRIKE_LIMIT)
        found: list[Located | None] = [None] * len(job_ids)
        asked: list[tuple[int, Lane, int]] = []
        for place, job_id in enumerate(job_ids):
            with suppress(InvalidValue):
                lane, sequence, _ = parse_job_id(job_id)
                asked.append((place, lane, sequence))
        if not asked:
            return found
        lanes = {lane: number for number, lane in enumerate(dict.fromkeys(lane for _, lane, _ in asked), 1)}
        args: list[int | bytes] = [self.keys.lane_name_from]
        for _, lane, sequence in asked:
            args += (sequence.to_bytes(8, "big"), lanes[lane])
        keys = [self.keys.delayed, self.keys.back, *map(self.keys.lane, lanes)]
        replies = await self._lead("locate", keys, *args, repeatable=True)
        for (place, lane, _), (kind, value) in zip(asked, replies, strict=True):
            try:
                header = decode_delayed(value) if kind == b"delayed" else decode_head(value, lane) if kind else None
            except MalformedMessage as error:
                log.warning("a job that was asked for cannot be decoded: %s", error)
                continue
            if header is not None and header.job_id == job_ids[place]:
                found[place] = Located(header, kind == b"delayed")
        return found

    async def letters(self, numbers: Sequence[int]) -> list[DeadLetter | None]:
        """See `drr.backend.DispatcherPort.letters`."""
        check_count("number of dead letters", len(numbers))
        letters = await self.read_letters(numbers)
        return [letter and replace(letter, payload=b"") for letter in letters]

    # --- news -----------------------------------------------------------------------------------------

    async def receive(self, position: Position, block: float, limit: int = ITEM_LIMIT) -> Facts:
        """See `drr.backend.DispatcherPort.receive`."""
        check_count("number of events to receive", limit, low=1)
        keys = self.keys
        cursors = (position.events or "0-0", position.wake or "0-0", position.requests or "0-0")
        streams = ("STREAMS", keys.events, keys.wake, keys.requests, *cursors)
        reply = by_stream(await self.blocking_call("news", block, (("XREAD", "COUNT", limit), streams)))
        events, events_at, workers_changed = _read_events(reply.get(keys.events.encode()), limit)
        lanes, due_at, wake_at = _read_wake(reply.get(keys.wake.encode()), events)
        await self._check_heads(lanes)
        requests = stream_entries(reply.get(keys.requests.encode()))
        return Facts(
            Position(
                events_at or position.events,
                wake_at or position.wake,
                requests[-1][0] if requests else position.requests,
            ),
            tuple(events),
            tuple(lanes.items()),
            workers_changed,
            tuple(decode_request(fields.get(b"request", b"")) for _, fields in requests),
            due_at,
        )

    async def _check_heads(self, lanes: dict[Lane, Header | Malformed]) -> None:
        """Replace malformed heads by what really is at the head: an announcement alone proves nothing."""
        doubtful = [lane for lane, head in lanes.items() if isinstance(head, Malformed)]
        for window in await self.peek([Peek(lane, 0, 1) for lane in doubtful]):
            head = window.entries[0] if window.entries else None
            if head is None or isinstance(head, Struck):
                del lanes[window.lane]
            else:
                lanes[window.lane] = head

    # --- headers and passes ---------------------------------------------------------------------------

    def _peek_command(self, requests: Sequence[Peek]) -> Command:
        lanes = [self.keys.lane(request.lane) for request in requests]
        args = [number for request in requests for number in (request.offset, request.count)]
        return ("FCALL_RO", function("peek"), len(lanes), *lanes, *args)

    async def peek(self, requests: Sequence[Peek]) -> list[Window]:
        """See `drr.backend.DispatcherPort.peek`."""
        check_peeks(requests)
        if not requests:
            return []
        command = self._peek_command(requests)
        try:
            reply = await self.link.call(*command, repeatable=True)
        except StoreNotPrepared:
            await self._load_library()
            reply = await self.link.call(*command, repeatable=True)
        return _windows(requests, reply)

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        """See `drr.backend.DispatcherPort.commit`."""
        check_commit(commit, peeks)
        if self._encoder is None:
            self._encoder = PassEncoder(self.keys)
        pools = await self._pools_of(commit.forget_workers)
        commands = [self._encoder.encode(commit, pools)]
        if peeks:
            commands.append(self._peek_command(peeks))
        replies = await self.link.calls(commands)
        if isinstance(replies[0], StoreNotPrepared):
            await self._load_library()
            replies = await self.link.calls(commands)
        lost = checked(replies)[0]
        for token in lost:
            log.error("lease %s could not be requeued and was buried: its pool entry was gone", token)
        return _windows(peeks, replies[1]) if peeks else []

    async def _pools_of(self, workers: Iterable[str]) -> tuple[str, ...]:
        """Return the pools whose streams the given workers may have read."""
        names = set(workers)
        if not names:
            return ()
        return tuple({pool for record in await self.workers() if record.name in names for pool in record.slots})

    async def write_status(self, token: str, blob: bytes) -> None:
        """See `drr.backend.DispatcherPort.write_status`."""
        await self._lead("write_status", [self.keys.leader, self.keys.status], token, blob)


def _read_events(entries: Any, limit: int) -> tuple[list[Event | MalformedEvent], str, bool]:
    """Decode event entries until ``limit``; return the events, the cursor, and whether a worker changed."""
    events: list[Event | MalformedEvent] = []
    cursor, workers_changed = "", False
    for entry_id, fields in stream_entries(entries):
        if b"worker" in fields:
            workers_changed = True
        else:
            batch = decode_events(fields.get(b"events", b""))
            if events and len(events) + len(batch) > limit:
                break
            events += batch
        cursor = entry_id
    return events, cursor, workers_changed


def _read_wake(
    entries: Any, events: list[Event | MalformedEvent]
) -> tuple[dict[Lane, Header | Malformed], float | None, str]:
    """Decode announcements; return lanes with their heads, the earliest due time, and the cursor."""
    lanes: dict[Lane, Header | Malformed] = {}
    due_at: float | None = None
    cursor = ""
    for entry_id, fields in stream_entries(entries):
        cursor = entry_id
        try:
            if b"due" in fields:
                at = float(fields[b"due"])
                due_at = at if due_at is None or at < due_at else due_at
                continue
            lane = lane_of(fields.get(b"lane", b""))
        except (MalformedMessage, ValueError) as error:
            events.append(MalformedEvent(repr(fields)[:1024].encode(), f"an announcement makes no sense: {error}"))
            continue
        head = decode_entry(fields.get(b"head", b""), lane)
        lanes[lane] = Malformed(lane, b"", "struck") if isinstance(head, Struck) else head
    return lanes, due_at, cursor


def _windows(requests: Sequence[Peek], reply: Any) -> list[Window]:
    return [
        Window(
            request.lane,
            request.offset,
            tuple(decode_entry(entry, request.lane) for entry in found[1:]),
            int(found[0]),
        )
        for request, found in zip(requests, reply, strict=True)
    ]
