"""A pass of the dispatcher as one function call: the keys it touches and the message Lua applies.

The shape of the message is written down in ``lua/commit.lua``. It is flat (items follow each other without
an array each) because building and reading it is most of what a commit costs on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgpack

from drr.backend import (
    CHANGES_KEPT,
    HISTORY_LENGTH,
    HISTORY_SECONDS,
    USAGE_KEPT_DAYS,
    Burial,
    Commit,
    DeathCause,
    Drop,
)
from drr.errors import InvalidValue
from drr.model import Completion, Header, JobState, Lane, Lease
from drr_backends.redis.accounts import USAGE_COUNTS, encode_change, encode_ended, estimate_field, usage_field
from drr_backends.redis.codec import encode_lease, head_of, raw_header
from drr_backends.redis.keys import Keys, node_field
from drr_backends.redis.library import function
from drr_backends.redis.link import Command
from drr_backends.redis.records import encode_completion, encode_node, encode_preamble
from drr_backends.redis.settings import encode_admission, encode_settings

REPLY_LENGTH: Final = 4096
"""About how many entries a client's reply stream keeps; each names the jobs of one commit."""
REPLY_KEEP: Final = 3_600_000
"""Milliseconds that a reply stream is kept after its last entry."""
ENTRY_GONE: Final = "its entry in the pool stream was gone, and the payload with it"

_FIXED: Final = 21
STOPS_KEPT: Final = 10_000
DAY_HOURS: Final = 24
_WIDTH_REQUEUE: Final = 15
_WIDTH_POSTPONE: Final = 16

# What Lua decodes has no type for bytes: strings of both kinds become plain ones.
_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class _Places:
    """Numbers keys of one kind by first use; the numbers become places in KEYS once all are known."""

    __slots__ = ("key_of", "keys", "numbers")

    def __init__(self, key_of: Callable[[Any], str]) -> None:
        self.key_of = key_of
        self.numbers: dict[Any, int] = {}
        self.keys: list[str] = []

    def number(self, thing: Any) -> int:
        """Return the number (from 1) of the key for ``thing``."""
        number = self.numbers.get(thing)
        if number is None:
            self.keys.append(self.key_of(thing))
            number = self.numbers[thing] = len(self.keys)
        return number


class PassEncoder:
    """Turns commits into commands. ``trims``: the lowest ids to keep, for a position's two cursors."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._fixed = (
            keys.leader, keys.position, keys.leases, keys.active, keys.events, keys.wake,
            keys.nodes, keys.settings, keys.dead, keys.workers, keys.requests, keys.due, keys.delayed, keys.back,
            keys.graves, keys.stopping, keys.stops, keys.estimates, keys.changes, keys.depth, keys.admission,
        )  # fmt: skip
        self._node_fields: dict[Any, str] = {}

    def encode(self, commit: Commit, pools_to_sweep: tuple[str, ...] = ()) -> Command:
        """Return the command that applies ``commit``.

        ``pools_to_sweep``: the pools in which forgotten workers may have left consumers behind.
        """
        job = _Pass(self._keys)
        for pool in pools_to_sweep:
            job.pools.number(pool)
        settlements, graves = job.settlements(commit)
        requeues = job.requeues(commit)
        postpones = job.postpones(commit)
        matures = [
            part
            for mature in commit.matures
            for part in (_number(mature.header), head_of(mature.header), job.lanes.number(mature.header.lane))
        ]
        revivals = job.revivals(commit)
        dropped = job.dropped(commit)
        strikes = job.strikes(commit)
        removals = job.removals(commit)
        dispatches = job.dispatches(commit)
        charges = [part for token, lease in commit.charges.items() for part in (token, encode_lease(lease))]
        usage = job.usage(commit)
        set_nodes, gone_nodes = self._nodes(commit)
        set_estimates, gone_estimates = _estimates(commit)
        # Only now is it known where the keys of each kind begin.
        pool_at, lane_at, outcome_at, reply_at, grave_at, history_at, usage_at = job.starts(_FIXED)
        _shift(settlements, 2, {1: pool_at})
        _shift(job.kept, 3, {0: outcome_at})
        _shift(graves, 3, {2: grave_at})
        _shift(requeues, _WIDTH_REQUEUE, {1: pool_at, 2: lane_at, 7: outcome_at, 10: reply_at, 12: grave_at})
        _shift(postpones, _WIDTH_POSTPONE, {1: pool_at, 8: outcome_at, 11: reply_at, 13: grave_at})
        _shift(matures, 3, {2: lane_at})
        _shift(revivals, 6, {1: lane_at, 4: grave_at, 5: outcome_at})
        _shift(strikes, 2, {0: lane_at})
        _shift(removals, 4, {0: lane_at, 3: grave_at})
        _shift(dispatches, 6, {0: lane_at, 1: pool_at})
        _shift(job.ends, 2, {0: history_at})
        _shift(usage, 3, {0: usage_at})
        replies = [part for number, ids in job.ended.items() for part in (number + reply_at, "\n".join(ids))]
        message = (
            _position(commit),
            settlements,
            job.kept,
            graves,
            replies,
            requeues,
            removals,
            dispatches,
            charges,
            set_nodes,
            gone_nodes,
            () if commit.settings is None else encode_admission(commit.settings, encode_settings(commit.settings)),
            [part for worker in commit.forget_workers.items() for part in worker],
            (
                REPLY_LENGTH,
                REPLY_KEEP,
                self._keys.lane_name_from,
                HISTORY_LENGTH,
                round(HISTORY_SECONDS * 1000),
                USAGE_KEPT_DAYS * 86_400_000,
                CHANGES_KEPT,
                STOPS_KEPT,
                len(job.pools.keys),
            ),
            postpones,
            matures,
            revivals,
            dropped,
            strikes,
            job.ends,
            usage,
            _depth(commit),
            tuple(commit.stops),
            set_estimates,
            gone_estimates,
            [encode_change(change) for change in commit.changes],
        )
        keys = [*self._fixed, *chain.from_iterable(kind.keys for kind in job.kinds)]
        counts = " ".join(str(len(kind.keys)) for kind in job.kinds)
        name, packed = function("commit"), _pack(message)
        return ("FCALL", name, len(keys), *keys, commit.token, commit.pass_number, counts, packed)

    def _nodes(self, commit: Commit) -> tuple[list[Any], list[str]]:
        fields = self._node_fields
        kept: list[Any] = []
        gone: list[str] = []
        for node, state in commit.nodes.items():
            field = fields.get(node)
            if field is None:
                if len(fields) > 200_000:
                    fields.clear()
                field = fields[node] = node_field(*node)
            if state is None:
                gone.append(field)
            else:
                kept.append(field)
                kept.append(encode_node(state))
        return kept, gone


class _Pass:
    """The items of one commit, with keys still counted by kind."""

    def __init__(self, keys: Keys) -> None:
        self.pools = _Places(keys.pool)
        self.lanes = _Places(keys.lane)
        self.outcomes = _Places(lambda header: keys.outcome(header.sequence, header.nonce))
        self.replies = _Places(keys.reply)
        self.graves = _Places(keys.graves_of)
        self.histories = _Places(keys.history)
        self.accounts = _Places(lambda place: keys.usage(*place))
        self.kinds = (
            self.pools, self.lanes, self.outcomes, self.replies, self.graves, self.histories, self.accounts,
        )  # fmt: skip
        self.kept: list[Any] = []
        self.ended: dict[int, list[str]] = {}
        self.ends: list[Any] = []
        """Records of ended jobs for the histories."""

    def starts(self, first: int) -> Iterator[int]:
        """Yield how many keys stand in front of each kind's; they follow each other after ``first`` fixed ones."""
        for kind in self.kinds:
            yield first
            first += len(kind.keys)

    def settlements(self, commit: Commit) -> tuple[list[Any], list[Any]]:
        ended: list[Any] = []
        graves: list[Any] = []
        for number, settlement in enumerate(commit.settlements, 1):
            lease = settlement.lease
            header = lease.header
            ended += (lease.token, self.pools.number(header.lane.pool))
            self._end(header, settlement.completion)
            if settlement.bury:
                preamble = encode_preamble(str(header.lane), settlement.bury, settlement.cause, job=True)
                graves += (number, preamble, self._grave(header.lane))
        return ended, graves

    def _end(self, header: Header, completion: Completion) -> None:
        """A job has ended: keep its outcome, tell who waits, and write it into its organisation's history."""
        if header.result_ttl > 0:
            self.kept += self._outcome(header, completion)
        if header.reply_to:
            self.ended.setdefault(self.replies.number(header.reply_to), []).append(header.job_id)
        self.ends += (self.histories.number(header.lane.path[0]), encode_ended(header, completion))

    def _grave(self, lane: Lane) -> int:
        return self.graves.number(lane.path[0])

    def requeues(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for requeue in commit.requeues:
            lease = requeue.lease
            lane = lease.header.lane
            items += (lease.token, self.pools.number(lane.pool), self.lanes.number(lane))
            items += (requeue.attempts, requeue.losses, requeue.failures)
            items += self._in_case_it_is_gone(lease)
        return items

    def postpones(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for postpone in commit.postpones:
            lease = postpone.lease
            lane = lease.header.lane
            items += (lease.token, self.pools.number(lane.pool), str(lane), float(postpone.due_at))
            items += (postpone.attempts, postpone.losses, postpone.failures)
            items += self._in_case_it_is_gone(lease)
        return items

    def _in_case_it_is_gone(self, lease: Lease) -> tuple[Any, ...]:
        """The job ends here if its pool entry is gone; nothing was measured of this attempt then."""
        header = lease.header
        outcome: tuple[int, int, bytes] = (0, 0, b"")
        if header.result_ttl > 0:
            end = Completion(JobState.DEAD, lease.attempt, lease.dispatched_at, 0.0, error=ENTRY_GONE)
            outcome = self._outcome(header, end)
        return (
            encode_preamble(str(header.lane), ENTRY_GONE, DeathCause.OTHER, job=True),
            *outcome,
            self.replies.number(header.reply_to) if header.reply_to else 0,
            header.job_id,
            self._grave(header.lane),
            "/".join(header.lane.path),
            round(header.work * 1e6),
        )

    def revivals(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for revival in commit.revivals:
            header = revival.header
            outcome = self.outcomes.number(header) if header.result_ttl > 0 else 0
            items += (revival.number, self.lanes.number(header.lane), _number(header), raw_header(header))
            items += (self._grave(header.lane), outcome)
        return items

    def dropped(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for drop in commit.drops_delayed:
            items += (_number(drop.header), head_of(drop.header))
            self._end(drop.header, drop.completion)
        return items

    def strikes(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for strike in commit.strikes:
            items += (self.lanes.number(strike.header.lane), head_of(strike.header))
            self._end(strike.header, strike.completion)
        return items

    def removals(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for removal in commit.removals:
            if isinstance(removal, Burial):
                preamble = encode_preamble(str(removal.lane), removal.reason, DeathCause.MALFORMED, job=False)
                items += (self.lanes.number(removal.lane), removal.raw, preamble, self._grave(removal.lane))
            elif isinstance(removal, Drop):
                items += (self.lanes.number(removal.header.lane), head_of(removal.header), "", 0)
                self._end(removal.header, removal.completion)
            else:
                items += (self.lanes.number(removal.lane), removal.sequence.to_bytes(8, "big"), "", 0)
        return items

    def usage(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for key, usage in commit.usage.items():
            place = self.accounts.number((key.path[0], key.hour // DAY_HOURS))
            stem = usage_field(key)
            for number, value in enumerate(usage):
                if value:
                    items += (place, f"{stem}:{number}", value if number < USAGE_COUNTS else round(value * 1e6))
        return items

    def dispatches(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        lanes, pools = self.lanes, self.pools
        for dispatch in commit.dispatches:
            header, lease = dispatch.header, dispatch.lease
            lane = header.lane
            items += (
                lanes.number(lane),
                pools.number(lane.pool),
                head_of(header),
                lease.token,
                lease.attempt,
                encode_lease(lease),
            )
        return items

    def _outcome(self, header: Header, completion: Completion) -> tuple[int, int, bytes]:
        keep = max(1, round(header.result_ttl * 1000))
        return self.outcomes.number(header), keep, encode_completion(completion)


def _shift(items: list[Any], width: int, by: Mapping[int, int]) -> None:
    """Add to the numbers in some columns of a flat list; 0 stays 0 (no key)."""
    for column, amount in by.items():
        items[column::width] = [number and number + amount for number in items[column::width]]


def _number(header: Header) -> bytes:
    return header.sequence.to_bytes(8, "big")


def _position(commit: Commit) -> tuple[str, ...]:
    read = commit.position
    return read.events, read.wake, read.requests, _after(read.events), _after(read.wake), _after(read.requests)


def _depth(commit: Commit) -> list[Any]:
    """Return by how much the counts of what waits change, of projects and of their organisations."""
    changes: dict[str, int] = {}
    for path, work in commit.waiting.items():
        micros = round(work.worker_seconds * 1e6)
        for tenant in ("/".join(path), path[0]):
            changes[tenant] = changes.get(tenant, 0) + work.jobs
            changes[f"{tenant}#"] = changes.get(f"{tenant}#", 0) + micros
    return [part for item in changes.items() if item[1] for part in item]


def _estimates(commit: Commit) -> tuple[list[Any], list[str]]:
    kept: list[Any] = []
    gone: list[str] = []
    for key, blob in commit.estimates.items():
        field = estimate_field(key)
        if blob is None:
            gone.append(field)
        else:
            kept += (field, blob)
    return kept, gone


_ID_MAX: Final = 2**64 - 1


def _after(cursor: str) -> str:
    """Return the id after a cursor: what has a lower one has been dealt with. "" if there is none to drop."""
    if not cursor:
        return ""
    milliseconds, number = check_cursor(cursor)
    if number < _ID_MAX:
        return f"{milliseconds}-{number + 1}"
    return f"{milliseconds + 1}-0" if milliseconds < _ID_MAX else ""


def check_cursor(cursor: str) -> tuple[int, int]:
    """Return the two numbers of a stream id; `InvalidValue` if ``cursor`` is none that this adapter gave."""
    milliseconds, _, number = cursor.partition("-")
    if re.fullmatch(r"[0-9]{1,20}-[0-9]{1,20}", cursor) is None or max(int(milliseconds), int(number)) > _ID_MAX:
        raise InvalidValue("cursor", cursor, "it must be one that the store returned, or empty for the start")
    return int(milliseconds), int(number)
