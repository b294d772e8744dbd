"""The store's look at itself, and what it sets right: `DispatcherPort.audit` on Redis.

Only the leader's commits change what is looked at (clients add to lanes, to what is put off and to the counts of
both), and it asks between two of them. So a page may be read by several commands; what is to be mended is looked at
once more by the function that does it, which also checks that the leader still leads.

Phases, in this order: entries of the pools' streams, leases, put-off jobs, due times, notes of jobs that were put
back, lanes that are said to hold jobs, what backlog limits count, and lanes that do hold jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

from drr.backend import AUDIT_LIMIT, Audit, DeathCause, Mismatch, Repair, Work, check_count
from drr.errors import BackendError, InvalidValue, MalformedMessage
from drr.model import Lane, Lease, TenantPath, check_name, check_path
from drr_backends.redis.codec import decode_delayed, decode_head, decode_lease, split_frame
from drr_backends.redis.dispatcher import DispatcherRole
from drr_backends.redis.keys import GROUP, lane_of
from drr_backends.redis.library import function
from drr_backends.redis.link import Command
from drr_backends.redis.records import UNKNOWN_LANE, encode_preamble
from drr_backends.redis.store import checked, stream_entries

NO_LEASE: Final = "its entry in the pool stream had no lease"
MICRO: Final = 1_000_000


class AuditRole(DispatcherRole):
    """The part of `drr.backend.DispatcherPort` that compares."""

    async def audit(self, token: str, pools: Sequence[str], cursor: str = "", limit: int = AUDIT_LIMIT) -> Audit:
        """See `drr.backend.DispatcherPort.audit`."""
        check_count("limit of an audit", limit, low=1, high=AUDIT_LIMIT)
        names = sorted({check_name("pool", pool) for pool in pools})
        await self._check_leader(token)
        phase, _, at = cursor.partition("|")
        if (phase or "entries") == "entries":
            return await self._entries(token, names, at, limit)
        look = _LOOKS.get(phase)
        if look is None:
            raise InvalidValue("cursor of an audit", cursor, "it must come from an audit of this store")
        page, after = await look(self, token, at or "0", limit)
        if after != "0":
            return replace(page, cursor=f"{phase}|{after}")
        later = _PHASES[_PHASES.index(phase) + 1 :]
        return replace(page, cursor=later[0] if later else "", leases_done=phase == "leases")

    async def _mend(self, token: str, what: str, notes: Sequence[tuple[bytes, bytes, Lane | None]]) -> list[bool]:
        """Mend notes of one kind, each with its subject, what belongs to it and the lane; return which were wrong."""
        keys = self.keys
        fixed = (keys.leader, keys.leases, keys.due, keys.delayed, keys.back, keys.active, keys.wake)
        commands: list[Command] = []
        for subject, value, lane in notes:
            of_lane = keys.leader if lane is None else keys.lane(lane)
            commands.append(("FCALL", function("mend"), 8, *fixed, of_lane, token, what, subject, value))
        return [bool(reply) for reply in checked(await self.link.calls(commands))] if commands else []

    async def correct_waiting(self, token: str, path: TenantPath, found: Work, change: Work) -> bool:
        """See `drr.backend.DispatcherPort.correct_waiting`."""
        tenant = "/".join(check_path(path))
        numbers = [part for work in (found, change) for part in (work.jobs, round(work.worker_seconds * MICRO))]
        keys = [self.keys.leader, self.keys.depth]
        return bool(await self._lead("correct", keys, token, tenant, path[0], *numbers))

    # --- pools ----------------------------------------------------------------------------------------

    async def _entries(self, token: str, pools: Sequence[str], at: str, limit: int) -> Audit:
        """Look at a page of one pool's stream; the cursor is the pool and the last id."""
        name, _, after = at.partition("|")
        left = [pool for pool in pools if pool >= name]
        if not left:
            return Audit("leases")
        pool, start = left[0], f"({after}" if after and left[0] == name else "-"
        key = self.keys.pool(pool)
        found = await self.link.call("XRANGE", key, start, "+", "COUNT", limit, repeatable=True)
        entries = stream_entries(found)
        repaired = []
        if entries:
            tokens = [fields.get(b"token", b"") for _, fields in entries]
            records = await self.link.call("HMGET", self.keys.leases, *tokens, repeatable=True)
            for (entry_id, fields), record in zip(entries, records, strict=True):
                if not (record or b"").startswith(entry_id.encode() + b" "):
                    repaired += await self._discard_entry(token, pool, entry_id, fields)
        if len(entries) == limit:
            return Audit(f"entries|{pool}|{entries[-1][0]}", tuple(repaired))
        repaired += await self._acknowledge_gone(pool, limit)
        return Audit(f"entries|{left[1]}|" if len(left) > 1 else "leases", tuple(repaired))

    async def _discard_entry(self, token: str, pool: str, entry_id: str, fields: dict[bytes, bytes]) -> list[Repair]:
        lane, job = UNKNOWN_LANE, False
        with suppress(MalformedMessage):
            lane = decode_head(split_frame(fields.get(b"frame", b""))[0]).lane
            job = True
        keys = self.keys
        done = await self._lead(
            "discard_entry",
            [
                *(keys.leader, keys.leases, keys.pool(pool), keys.workers, keys.dead, keys.graves),
                *(keys.graves_of(lane.path[0]), keys.position),
            ],
            token,
            entry_id,
            fields.get(b"token", b""),
            encode_preamble(str(lane), NO_LEASE, DeathCause.OTHER if job else DeathCause.MALFORMED, job=job),
        )
        return [Repair(Mismatch.ENTRY, f"entry {entry_id} of pool {pool} without a lease; buried")] if done else []

    async def _acknowledge_gone(self, pool: str, limit: int) -> list[Repair]:
        """Acknowledge the oldest deliveries of which the entries are gone."""
        key = self.keys.pool(pool)
        try:
            pending = await self.link.call("XPENDING", key, GROUP, "-", "+", limit, repeatable=True)
        except BackendError:
            return []  # nobody has read this stream yet
        ids = [item[0] for item in pending]
        if not ids:
            return []
        found = checked(await self.link.calls([("XRANGE", key, id, id) for id in ids], repeatable=True))
        gone = [id for id, entry in zip(ids, found, strict=True) if not entry]
        if gone:
            await self.link.call("XACK", key, GROUP, *gone, repeatable=True)
        return [
            Repair(Mismatch.ENTRY, f"delivery of entry {id.decode()} of pool {pool}, which is gone; acknowledged")
            for id in gone
        ]

    # --- leases ---------------------------------------------------------------------------------------

    async def _leases_page(self, token: str, at: str, limit: int) -> tuple[Audit, str]:
        after, flat = await self.link.call("HSCAN", self.keys.leases, at, "COUNT", limit, repeatable=True)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        repaired = await self._mend_pointers(token, {f[1:]: to for f, to in fields.items() if _is_pointer(f)})
        leases: list[tuple[Lease, bytes]] = []
        for field, record in fields.items():
            if not _is_pointer(field):
                with suppress(MalformedMessage):  # a loading leader buries it
                    leases.append((decode_lease(record), record.partition(b" ")[0]))
        commands = [("XRANGE", self.keys.pool(lease.header.lane.pool), id, id) for lease, id in leases]
        found = checked(await self.link.calls(commands, repeatable=True)) if commands else []
        bare = tuple(lease.token for (lease, _), entry in zip(leases, found, strict=True) if not entry)
        numbers = {_packed(lease.header.sequence): lease.token.encode() for lease, _ in leases}
        pointers = await self._fields(self.keys.leases, [b"#" + number for number in numbers])
        lone = [(*note, None) for note, pointer in zip(numbers.items(), pointers, strict=True) if pointer is None]
        for (number, to, _), wrong in zip(lone, await self._mend(token, "runs not", lone), strict=True):
            if wrong:
                what = f"nothing led from job {_number(number)} to its lease {to.decode()}"
                repaired.append(Repair(Mismatch.PLACE, what))
        tokens = tuple(lease.token for lease, _ in leases)
        return Audit(repaired=tuple(repaired), tokens=tokens, bare=bare), after.decode()

    async def _mend_pointers(self, token: str, pointers: dict[bytes, bytes]) -> list[Repair]:
        records = await self._fields(self.keys.leases, list(pointers.values()))
        suspects = [
            (number, to, None)
            for (number, to), record in zip(pointers.items(), records, strict=True)
            if number not in (record or b"")[:_HEAD_WITHIN]
        ]
        wrong = await self._mend(token, "runs", suspects)
        return [
            Repair(Mismatch.PLACE, f"job {_number(number)} said to run under {to!r}, which is no lease of it")
            for (number, to, _), mended in zip(suspects, wrong, strict=True)
            if mended
        ]

    async def _fields(self, key: str, fields: Sequence[bytes]) -> list[bytes | None]:
        return list(await self.link.call("HMGET", key, *fields, repeatable=True)) if fields else []

    # --- what is put off ------------------------------------------------------------------------------

    async def _delayed_page(self, token: str, at: str, limit: int) -> tuple[Audit, str]:
        after, flat = await self.link.call("HSCAN", self.keys.delayed, at, "COUNT", limit, repeatable=True)
        kept = dict(zip(flat[::2], flat[1::2], strict=True))
        if not kept:
            return Audit(), after.decode()
        scores = await self.link.call("ZMSCORE", self.keys.due, *kept, repeatable=True)
        now = (await self.link.call("TIME", repeatable=True))[0]
        lone = [(number, now, None) for number, score in zip(kept, scores, strict=True) if score is None]
        repaired = tuple(
            Repair(Mismatch.PLACE, f"delayed job {_number(number)} without a due time; due now")
            for (number, _, _), wrong in zip(lone, await self._mend(token, "undue", lone), strict=True)
            if wrong
        )
        works: dict[TenantPath, Work] = {}
        for value in kept.values():
            name, _, frame = value.partition(b"\n")
            with suppress(MalformedMessage):  # it is buried when it is due
                header = decode_delayed(name + b"\n" + split_frame(frame)[0])
                before = works.get(header.lane.path, Work())
                works[header.lane.path] = Work(before.jobs + 1, before.worker_seconds + header.work)
        return Audit(repaired=repaired, delayed=works), after.decode()

    async def _due_page(self, token: str, at: str, limit: int) -> tuple[Audit, str]:
        after, flat = await self.link.call("ZSCAN", self.keys.due, at, "COUNT", limit, repeatable=True)
        found = await self._fields(self.keys.delayed, flat[::2])
        stale = [(number, b"", None) for number, value in zip(flat[::2], found, strict=True) if value is None]
        repaired = tuple(
            Repair(Mismatch.PLACE, f"due time of job {_number(number)}, which is not delayed")
            for (number, _, _), wrong in zip(stale, await self._mend(token, "stale", stale), strict=True)
            if wrong
        )
        return Audit(repaired=repaired), after.decode()

    # --- lanes ----------------------------------------------------------------------------------------

    async def _back_page(self, token: str, at: str, limit: int) -> tuple[Audit, str]:
        """Look for each job that was put back at the head of its lane: few at a time, since that is a search."""
        count = min(limit, _BACK_LIMIT)
        after, flat = await self.link.call("HSCAN", self.keys.back, at, "COUNT", count, repeatable=True)
        notes = []
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            if _is_pointer(field):
                name = value.partition(b" ")[2]
                with suppress(MalformedMessage):
                    notes.append((field[1:], name, lane_of(name)))
        repaired = tuple(
            Repair(Mismatch.PLACE, f"job {_number(number)} said to wait in lane {lane}, where it is not")
            for (number, _, lane), wrong in zip(notes, await self._mend(token, "back", notes), strict=True)
            if wrong
        )
        return Audit(repaired=repaired), after.decode()

    async def _active_page(self, token: str, at: str, limit: int) -> tuple[Audit, str]:
        after, names = await self.link.call("SSCAN", self.keys.active, at, "COUNT", limit, repeatable=True)
        lanes = _lanes(names)
        lengths = await self.lane_lengths(lanes)
        empty = [(str(lane).encode(), b"", lane) for lane, n in zip(lanes, lengths, strict=True) if not n]
        repaired = tuple(
            Repair(Mismatch.PLACE, f"lane {lane} said to hold jobs, and does not")
            for (_, _, lane), wrong in zip(empty, await self._mend(token, "empty", empty), strict=True)
            if wrong
        )
        held = tuple(lane for lane, length in zip(lanes, lengths, strict=True) if length)
        return Audit(repaired=repaired, lanes=held), after.decode()

    async def _hidden_page(self, token: str, at: str, limit: int) -> tuple[Audit, str]:
        """Look for lanes by their keys: the only way to see one that nothing leads to."""
        prefix = self.keys.prefix + "lane:"
        # A name has no sign of a pattern in it, and neither has what stands around it.
        command = ("SCAN", at, "MATCH", f"{prefix}*", "COUNT", limit * _KEYS_PER_ITEM, "TYPE", "list")
        after, found = await self.link.call(*command, repeatable=True)
        lanes = _lanes([key[len(prefix) :] for key in found])
        if not lanes:
            return Audit(), after.decode()
        said = await self.link.call("SMISMEMBER", self.keys.active, *map(str, lanes), repeatable=True)
        hidden = [(str(lane).encode(), b"", lane) for lane, known in zip(lanes, said, strict=True) if not known]
        repaired = tuple(
            Repair(Mismatch.LANE, f"lane {lane} holds jobs, which nothing told; announced")
            for (_, _, lane), wrong in zip(hidden, await self._mend(token, "hidden", hidden), strict=True)
            if wrong
        )
        return Audit(repaired=repaired), after.decode()

    async def _waiting_page(self, token: str, at: str, limit: int) -> tuple[Audit, str]:
        del token
        after, flat = await self.link.call("HSCAN", self.keys.depth, at, "COUNT", limit, repeatable=True)
        paths: list[TenantPath] = []
        for field in dict.fromkeys(name.rstrip(b"#") for name in flat[::2]):
            try:
                path = check_path(field.decode("ascii"))
            except ValueError:
                continue
            if len(path) > 1:
                paths.append(path)
        works = await self.waiting(paths)  # type: ignore[attr-defined]  # the client's part of the same handle
        return Audit(waiting=dict(zip(paths, works, strict=True))), after.decode()


def _packed(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def _number(packed: bytes) -> int:
    return int.from_bytes(packed, "big")


def _is_pointer(field: bytes) -> bool:
    """Whether a field leads from a job's number to something."""
    return field[:1] == b"#" and len(field) == 9


def _lanes(names: Sequence[bytes]) -> list[Lane]:
    lanes = []
    for name in names:
        with suppress(MalformedMessage):
            lanes.append(lane_of(name))
    return lanes


_BACK_LIMIT: Final = 50
_KEYS_PER_ITEM: Final = 10
"""Keys of the server, of whatever kind, that are passed over for each item of a page."""
_HEAD_WITHIN: Final = 64
"""Bytes of a lease's record within which its job's number stands, behind the id of the entry."""
_Look: TypeAlias = Callable[[Any, str, str, int], Awaitable[tuple[Audit, str]]]
_LOOKS: Final[dict[str, _Look]] = {
    "leases": AuditRole._leases_page,
    "delayed": AuditRole._delayed_page,
    "due": AuditRole._due_page,
    "back": AuditRole._back_page,
    "active": AuditRole._active_page,
    "waiting": AuditRole._waiting_page,
    "hidden": AuditRole._hidden_page,
}
_PHASES: Final = tuple(_LOOKS)
