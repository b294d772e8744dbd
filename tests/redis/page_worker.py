"""A worker written from docs/protocol.md alone: raw commands, and not a line of drr.

It is no example of a good worker (one attempt at a time, no threads), only proof that the page is complete.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import msgpack
from redis import Redis
from redis.exceptions import ResponseError


class PageWorker:
    """One slot in one pool. Blocking; each method is a step of the page."""

    def __init__(self, client: Redis, namespace: str, name: str, pool: str = "default") -> None:
        self.client = client
        self.prefix = f"drr:{{{namespace}}}:"
        self.name, self.pool = name, pool
        self.incarnation = uuid.uuid4().hex[:16]
        self.held: list[bytes] = []
        self.draining = False
        self.library = ""
        self.done: list[tuple[str, int]] = []

    def key(self, name: str) -> str:
        return self.prefix + name

    def function(self, operation: str, *args: Any) -> Any:
        return self.command("FCALL", f"drr_{operation}_{self.library}", *args)

    def command(self, *words: Any) -> Any:
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]

    @property
    def shape(self) -> bytes:
        return bytes(msgpack.packb([1, {self.pool: 1}, self.draining]))

    @property
    def holding(self) -> bytes:
        return bytes(msgpack.packb([1, [token.decode() for token in self.held], "page"]))

    def join(self, replacing: str = "") -> str:
        """Return the incarnation that holds the name, or "" for a welcome."""
        self.library = self.command("HGET", self.key("schema"), "library").decode()
        assert self.command("HGET", self.key("schema"), "number") == b"1"
        keys = [self.key("workers"), self.key("events"), self.key(f"pool:{self.pool}")]
        args = [self.name, self.incarnation, replacing, self.shape, self.holding]
        answer: bytes = self.function("join", 3, *keys, *args)
        return answer.decode()

    def beat(self) -> bool:
        keys = [self.key("workers"), self.key("events")]
        return bool(self.function("heartbeat", 2, *keys, self.name, self.incarnation, self.shape, self.holding))

    def leave(self) -> None:
        keys = [self.key("workers"), self.key("events"), self.key(f"pool:{self.pool}")]
        self.function("leave", 3, *keys, self.name, self.incarnation)

    def entries(self, after: str, block: int | None = None) -> list[tuple[bytes, dict[bytes, bytes]]]:
        stream = self.key(f"pool:{self.pool}")
        consumer = f"{self.name}:{self.incarnation}"
        try:
            found: Any = self.client.xreadgroup("workers", consumer, {stream: after}, count=1, block=block)
        except ResponseError as error:
            assert str(error).startswith("NOGROUP")  # noqa: PT017
            self.command("XGROUP", "CREATE", stream, "workers", "0", "MKSTREAM")
            return self.entries(after, block)
        return list(found[0][1]) if found else []

    def work(self, handlers: dict[str, Callable[..., Any]], after: str = ">", block: int | None = None) -> int:
        """Run what one read delivers and report it; return how many attempts that were."""
        entries = [(entry, fields) for entry, fields in self.entries(after, block) if fields]
        for _, fields in entries:
            token = fields[b"token"]
            self.held.append(token)
            assert self.beat()
            self.report([self.run(fields, handlers)])
            self.held.remove(token)
        return len(entries)

    def run(self, fields: dict[bytes, bytes], handlers: dict[str, Callable[..., Any]]) -> list[Any]:
        event: list[Any] = [fields[b"token"].decode(), "failed", self.name, 0.25, b"", "", None]
        try:
            frame = fields[b"frame"]
            sequence, _, _, _, _, length = struct.unpack_from(">QHHHHI", frame)
            header = msgpack.unpackb(frame[20 : 20 + length])
            version, pool, path, priority, limits, task, nonce, *_ = header
            payload_version, args, kwargs = msgpack.unpackb(frame[20 + length :])
            assert version == payload_version == 1
            last = "+".join((str(priority), *limits))
            self.done.append((f"{pool}:{':'.join(path)}:{last}:{sequence}~{nonce}", int(fields[b"attempt"])))
            event[4] = msgpack.packb([1, handlers[task](*args, **kwargs)])
            event[1] = "succeeded"
        except Exception as error:
            event[5] = repr(error)
        return event

    def to_stop(self, after: str = "") -> tuple[str, list[str]]:
        """Return a new cursor, and the tokens of attempts whose jobs were cancelled."""
        if not after:
            last: Any = self.command("XREVRANGE", self.key("stops"), "+", "-", "COUNT", 1)
            tokens = self.command("HKEYS", self.key("stopping"))
            return (last[0][0].decode() if last else "0-0"), [token.decode() for token in tokens]
        found: Any = self.client.xread({self.key("stops"): after}, count=1000)
        entries = found[0][1] if found else []
        return (entries[-1][0].decode() if entries else after), [fields[b"token"].decode() for _, fields in entries]

    def progress(self, token: bytes, job_id: str, fraction: float | None, message: str) -> bool:
        number, _, nonce = job_id.rpartition(":")[2].partition("~")
        keys = [self.key("leases"), self.key(f"progress:{number}~{nonce}")]
        said = msgpack.packb([fraction, message])
        return bool(self.function("progress", 2, *keys, token, int(number).to_bytes(8, "big"), said, 3600000))

    def report(self, events: list[list[Any]]) -> None:
        self.function("report", 1, self.key("events"), msgpack.packb([1, events]))
