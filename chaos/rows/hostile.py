"""Messages that are none: in lanes, among announcements, events and requests, and at the client's front door.

Whoever may submit may write raw keys, so the dispatcher has to live with whatever stands there. Each entry of a
lane has to end on the dead-letter list; everything else is refused or skipped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgpack

from chaos.load import Load
from chaos.row import Findings, Row
from chaos.site import NAMESPACE, Site
from drr.backend import ITEM_LIMIT, Malformed, Struck
from drr.client import Client
from drr.errors import DrrError
from drr.model import UNNAMED_WORK, Completion, Header, JobSpec, Lane
from drr_backends.redis.codec import HEAD_LIMIT, body_of, decode_entry, split_frame

AT_ONCE: Final = 200
"""Messages in one round trip."""
FIRST: Final = 2**52
"""Numbers of planted jobs begin here, where no real one has come to."""


class Forger:
    """Makes hostile messages, the same for the same seed."""

    def __init__(self, seed: int, tenants: int, projects: int) -> None:
        self._rng = random.Random(seed)
        self._tenants = tenants
        self._projects = projects
        self._number = 0

    def lane(self) -> Lane:
        """Return a lane that others use too."""
        rng = self._rng
        return Lane("default", (f"org-{rng.randrange(self._tenants)}", f"project-{rng.randrange(self._projects)}"))

    def choice(self, of: int) -> int:
        """Return a number below ``of``."""
        return self._rng.randrange(of)

    def noise(self, longest: int = 200) -> bytes:
        """Return random bytes."""
        return self._rng.randbytes(self._rng.randrange(longest))

    def bomb(self) -> bytes:
        """Return a message that is small and would take much memory, or that nests deeply."""
        return self._rng.choice(
            [
                b"\xdd\xff\xff\xff\xff" + b"\x90" * 100,
                b"\x91" * 2000 + b"\x90",
                b"\xdf\xff\xff\xff\xff",
                b"\xc6\xff\xff\xff\xff" + b"x" * 50,
                b"\x9e" + b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff" * 14,
                b"\x9e" + b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00" * 14,
            ]
        )

    def frame(self, lane: Lane) -> bytes:
        """Return a job that would be valid, for a task that no worker has."""
        self._number += 1
        spec = JobSpec(lane, "nobody", self.noise(), submitted_at=0.0)
        return (FIRST + self._number).to_bytes(8, "big") + body_of(spec, f"forged-{self._number}")

    def entry(self, lane: Lane) -> bytes:
        """Return an entry of a lane."""
        rng = self._rng
        frame = bytearray(self.frame(lane))
        match rng.randrange(7):
            case 0:
                return self.noise()
            case 1:
                return bytes(frame[: rng.randrange(len(frame))])
            case 2:
                return self.frame(self.lane())  # which is a job of another lane, mostly
            case 3:
                return bytes(frame[:20]) + self.bomb()
            case 4:
                return bytes(frame) + rng.randbytes(3 * HEAD_LIMIT)
            case 5:
                return bytes(frame)
            case _:
                for _ in range(rng.randrange(1, 6)):
                    frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
                return bytes(frame)

    def message(self) -> bytes:
        """Return what might stand in a stream."""
        rng = self._rng
        kind = rng.choice(["cancel", "revive", "plans", "assign", "", "x" * 300, 7])
        records: list[Callable[[], bytes]] = [
            self.noise,
            self.bomb,
            lambda: msgpack.packb([1, kind, "no such job", b"", "", ""]),
            lambda: msgpack.packb([1, [["token", "succeeded", "w0", -1.0, b"", "", None]]]),
            lambda: msgpack.packb([rng.randrange(5)] * rng.randrange(12)),
        ]
        return rng.choice(records)()


async def plant(site: Site, load: Load, findings: Findings) -> None:
    """Plant hostile messages among jobs under way, and knock at the front door."""
    scale = site.scale
    forger = Forger(load.seed + findings.faults, scale.organisations, scale.projects)
    number = -(-scale.hostile // scale.strikes)
    for first in range(0, number, AT_ONCE):
        commands = [
            command for _ in range(min(AT_ONCE, number - first)) for command in _commands(site, forger, findings)
        ]
        for reply in await site.backend.link.calls(commands):
            if isinstance(reply, Exception):
                findings.problems.append(f"a message could not be planted: {reply}")
        site.check()
    findings.faults += number
    await _knock(site, forger, findings)
    await load.moves_on()


def _commands(site: Site, forger: Forger, findings: Findings) -> list[tuple[str | bytes | int, ...]]:
    names, lane = site.backend.keys, forger.lane()
    match forger.choice(10):
        case 0:
            return [("XADD", names.events, "*", "events", forger.message())]
        case 1:
            return [("XADD", names.requests, "*", "request", forger.message())]
        case 2:
            return [("XADD", names.wake, "*", "lane", forger.noise(), "head", forger.message())]
        case 3:
            return [("XADD", names.wake, "*", forger.noise(), forger.noise())]
        case _:
            entry = forger.entry(lane)
            seen = decode_entry(split_frame(entry)[0], lane)
            findings.count(_fate(seen))
            return [
                *_counted(names.depth, lane, seen),
                ("RPUSH", names.lane(lane), entry),
                ("SADD", names.active, str(lane)),
                ("XADD", names.wake, "*", "lane", str(lane), "head", entry[:HEAD_LIMIT]),
            ]


def _fate(seen: Header | Malformed | Struck) -> str:
    """Return what an entry is counted as. A flipped bit can make a deadline that has passed: no dead letter then."""
    if isinstance(seen, Struck):
        return "struck"
    late = isinstance(seen, Header) and seen.deadline is not None and seen.deadline < time.time()
    return "entries_expired" if late else "entries_planted"


def _counted(depth: str, lane: Lane, seen: Header | Malformed | Struck) -> list[tuple[str | bytes | int, ...]]:
    """Return what counts an entry as waiting. Whoever appends to a lane does that; the dispatcher takes it off."""
    if isinstance(seen, Struck):
        return []
    micros = round((seen.work if isinstance(seen, Header) else UNNAMED_WORK) * 1e6)
    tenants = (lane.path[0], "/".join(lane.path))
    return [
        ("HINCRBY", depth, field, by) for tenant in tenants for field, by in ((tenant, 1), (f"{tenant}#", micros))
    ]


async def _knock(site: Site, forger: Forger, findings: Findings) -> None:
    """Ask a client for what no client may; it has to be refused, and with an error of this project."""
    async with Client(site.server.url, namespace=NAMESPACE) as client:
        for _ in range(100):
            text = forger.noise(300).decode("latin-1")
            asked: dict[str, Any] = {"task": "spend", "tenant": "org-0/project-0"}
            asked[("task", "tenant", "pool", "key", "id")[forger.choice(5)]] = text + "\n{}:*"
            task = asked.pop("task")
            try:
                job = await client.submit(task, [forger.message()], **asked)
            except DrrError:
                findings.count("refused_at_the_door")
            else:
                findings.problems.append(f"{asked} was taken as {job.id}")


async def check_buried(site: Site, load: Load, findings: Findings, completions: dict[str, Completion]) -> None:
    """Every planted entry is a dead letter."""
    buried, after = 0, 0
    while True:
        letters = await site.patiently(partial(site.backend.dead_letters, limit=ITEM_LIMIT, after=after))
        if not letters:
            break
        buried, after = buried + len(letters), letters[-1].number
    findings.notes["dead_letters"] = buried
    if buried != findings.notes.get("entries_planted"):
        findings.problems.append(f"{findings.notes.get('entries_planted')} entries were planted, {buried} are dead")


ROWS = (Row("hostile payloads, headers, events, ids", plant, check_buried),)
