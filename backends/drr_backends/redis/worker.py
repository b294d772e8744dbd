"""The worker's role: join, beat, take attempts, report. docs/protocol.md describes it for other languages.

An incarnation reads as a consumer of its own, ``name:incarnation``. So what was delivered to a predecessor,
or is being delivered to one that does not know yet that it is dead, is never pending for the successor;
the dispatcher requeues it. Consumers with nothing pending that belong to no incarnation on record are
removed whenever a worker joins, leaves or is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drr.backend import (
    ITEM_LIMIT,
    PROGRESS_LIMIT,
    PROGRESS_SECONDS,
    TOKEN_LIMIT,
    Attempt,
    Event,
    Malformed,
    WorkerRecord,
    check_count,
    check_worker,
)
from drr.errors import BackendError, MalformedMessage, StoreCorrupt, WorkerNameInUse
from drr.model import Lane, check_name, parse_job_id
from drr_backends.redis.codec import decode_head, split_frame
from drr_backends.redis.keys import GROUP, consumer
from drr_backends.redis.passes import check_cursor
from drr_backends.redis.records import UNKNOWN_LANE, decode_worker, encode_events, encode_held, encode_shape
from drr_backends.redis.store import Store, by_stream, checked, stream_entries


class WorkerRole(Store):
    """`drr.backend.WorkerPort` on Redis."""

    async def join(self, record: WorkerRecord, replacing: str = "") -> None:
        """See `drr.backend.WorkerPort.join`."""
        check_worker(record)
        keys = [self.keys.workers, self.keys.events, *map(self.keys.pool, record.slots)]
        shape, held = encode_shape(record), encode_held(record)
        other = await self.call("join", keys, record.name, record.incarnation, replacing, shape, held)
        if other:
            raise WorkerNameInUse(record.name, other.decode("utf-8", "replace"))

    async def worker_record(self, name: str) -> WorkerRecord | None:
        """See `drr.backend.WorkerPort.worker_record`."""
        check_name("worker", name)
        fields = [f"{name}:{part}" for part in ("incarnation", "shape", "held", "renewals")]
        values = await self.link.call("HMGET", self.keys.workers, *fields, repeatable=True)
        if values[0] is None:
            return None
        try:
            return decode_worker(name, *(value or b"" for value in values))
        except MalformedMessage as error:
            raise StoreCorrupt(f"the record of worker {name} cannot be read: {error}") from None

    async def heartbeat(self, record: WorkerRecord) -> bool:
        """See `drr.backend.WorkerPort.heartbeat`."""
        check_worker(record)
        keys = [self.keys.workers, self.keys.events]
        shape, held = encode_shape(record), encode_held(record)
        return bool(await self.call("heartbeat", keys, record.name, record.incarnation, shape, held))

    async def leave(self, name: str, incarnation: str) -> None:
        """See `drr.backend.WorkerPort.leave`."""
        try:
            record = await self.worker_record(name)
        except StoreCorrupt:
            record = None
        pools = record.slots if record is not None and record.incarnation == incarnation else ()
        keys = [self.keys.workers, self.keys.events, *map(self.keys.pool, pools)]
        await self.call("leave", keys, name, incarnation)

    async def read_attempts(
        self, name: str, incarnation: str, pool: str, count: int, block: float
    ) -> list[Attempt | Malformed]:
        """See `drr.backend.WorkerPort.read_attempts`.

        If the caller is cancelled, what was being delivered stays pending: see `pending_attempts`.
        """
        check_count("number of attempts to read", count, low=1)
        key = self.keys.pool(pool)
        head = ("XREADGROUP", "GROUP", GROUP, consumer(name, incarnation), "COUNT", count)
        reply = await self._read_group(key, ("attempts", pool, name), block, (head, ("STREAMS", key, ">")))
        return _attempts(reply)

    async def pending_attempts(self, name: str, incarnation: str, pool: str) -> list[Attempt | Malformed]:
        """See `drr.backend.WorkerPort.pending_attempts`."""
        key = self.keys.pool(pool)
        head = ("XREADGROUP", "GROUP", GROUP, consumer(name, incarnation), "COUNT", ITEM_LIMIT)
        found: list[Attempt | Malformed] = []
        after = "0"
        while True:
            # On the reader's own connection: a delivery that is still under way there comes first.
            reply = await self._read_group(key, ("attempts", pool, name), 0, (head, ("STREAMS", key, after)))
            if not reply:
                return found
            # An entry that was settled meanwhile is still listed for a moment, without content.
            found += _attempts([entry for entry in reply if entry[1]])
            after = reply[-1][0].decode()

    async def stops(self, after: str, block: float) -> tuple[str, list[str]]:
        """See `drr.backend.WorkerPort.stops`."""
        key = self.keys.stops
        if after == "":
            last, tokens = checked(
                await self.link.calls(
                    [("XREVRANGE", key, "+", "-", "COUNT", 1), ("HKEYS", self.keys.stopping)], repeatable=True
                )
            )
            return last[0][0].decode() if last else "0-0", [token.decode("utf-8", "replace") for token in tokens]
        check_cursor(after)
        command = (("XREAD", "COUNT", ITEM_LIMIT), ("STREAMS", key, after))
        reply = await self.blocking_call(("stops",), block, command)
        found = stream_entries(by_stream(reply).get(key.encode()))
        tokens = [fields.get(b"token", b"").decode("utf-8", "replace") for _, fields in found]
        return found[-1][0] if found else after, tokens

    async def report_progress(self, token: str, job_id: str, blob: bytes) -> bool:
        """See `drr.backend.WorkerPort.report_progress`."""
        check_count("bytes of progress", len(blob), high=PROGRESS_LIMIT)
        _, sequence, nonce = parse_job_id(job_id)
        keys = [self.keys.leases, self.keys.progress(sequence, nonce)]
        packed = sequence.to_bytes(8, "big")
        expiry = round(PROGRESS_SECONDS * 1000)
        return bool(await self.call("progress", keys, token, packed, blob, expiry, repeatable=True))

    async def report(self, events: Sequence[Event]) -> None:
        """See `drr.backend.WorkerPort.report`."""
        check_count("number of events in one report", len(events))
        if events:
            await self.call("report", [self.keys.events], *encode_events(events), repeatable=True)

    async def _read_group(self, key: str, reader: tuple[str, ...], block: float, command: Any) -> list[Any]:
        try:
            reply = await self.blocking_call(reader, block, command)
        except BackendError as error:
            if "NOGROUP" not in str(error):
                raise
            # Nothing was dispatched to the pool yet and nobody has joined it, or the stream was deleted.
            made = (await self.link.calls([("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM")]))[0]
            if isinstance(made, Exception) and "BUSYGROUP" not in str(made):
                raise made from None
            reply = await self.blocking_call(reader, block, command)
        return list(by_stream(reply).get(key.encode()) or ())


def _attempts(entries: list[Any]) -> list[Attempt | Malformed]:
    return [_attempt(delivery, fields) for delivery, fields in stream_entries(entries)]


def _attempt(delivery: str, fields: dict[bytes, bytes]) -> Attempt | Malformed:
    frame = fields.get(b"frame", b"")
    head, payload = split_frame(frame)
    lane: Lane = UNKNOWN_LANE
    try:
        header = decode_head(head)
        lane = header.lane
        token, number = fields[b"token"].decode("utf-8"), int(fields[b"attempt"])
        if not 0 < len(token) <= TOKEN_LIMIT or not 1 <= number <= 2**31:
            raise MalformedMessage("attempt", "its token or number is out of range")
    except KeyError as missing:
        return Malformed(lane, frame[:4096], f"a pool entry lacks {missing}")
    except (MalformedMessage, ValueError) as error:
        return Malformed(lane, frame[:4096], str(error)[:300])
    return Attempt(delivery, token, number, header, payload)
