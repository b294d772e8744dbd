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
        event: list[Any] = [fields[b"token"].decode(), "failed", self.name, 0.25, b"", ""]
        try:
            frame = fields[b"frame"]
            sequence, _, _, length = struct.unpack_from(">QHHI", frame)
            header = msgpack.unpackb(frame[16 : 16 + length])
            version, pool, path, priority, task, nonce, *_ = header
            payload_version, args, kwargs = msgpack.unpackb(frame[16 + length :])
            assert version == payload_version == 1
            self.done.append((f"{pool}:{':'.join(path)}:{priority}:{sequence}~{nonce}", int(fields[b"attempt"])))
            event[4] = msgpack.packb([1, handlers[task](*args, **kwargs)])
            event[1] = "succeeded"
        except Exception as error:
            event[5] = repr(error)
        return event

    def report(self, events: list[list[Any]]) -> None:
        self.function("report", 1, self.key("events"), msgpack.packb([1, events]))
