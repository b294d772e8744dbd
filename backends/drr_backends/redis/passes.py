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

from drr.backend import Commit
from drr.errors import InvalidValue
from drr.model import Completion, Header, JobState
from drr_backends.redis.codec import encode_lease, head_of
from drr_backends.redis.keys import Keys, node_field
from drr_backends.redis.library import function
from drr_backends.redis.link import Command
from drr_backends.redis.records import encode_completion, encode_node, encode_preamble, encode_settings

REPLY_LENGTH: Final = 4096
"""About how many entries a client's reply stream keeps; each names the jobs of one commit."""
REPLY_KEEP: Final = 3_600_000
"""Milliseconds that a reply stream is kept after its last entry."""
ENTRY_GONE: Final = "its entry in the pool stream was gone, and the payload with it"

_FIXED: Final = 10

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
            keys.nodes, keys.settings, keys.dead, keys.workers,
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
        burials = job.burials(commit)
        dispatches = job.dispatches(commit)
        charges = [part for token, lease in commit.charges.items() for part in (token, encode_lease(lease))]
        set_nodes, gone_nodes = self._nodes(commit)
        # Only now is it known where the keys of each kind begin.
        pool_at, lane_at, outcome_at, reply_at = job.starts(_FIXED)
        _shift(settlements, 2, {1: pool_at})
        _shift(job.kept, 3, {0: outcome_at})
        _shift(requeues, 11, {1: pool_at, 2: lane_at, 6: outcome_at, 9: reply_at})
        _shift(burials, 3, {0: lane_at})
        _shift(dispatches, 6, {0: lane_at, 1: pool_at})
        replies = [part for number, ids in job.ended.items() for part in (number + reply_at, "\n".join(ids))]
        message = (
            _position(commit),
            settlements,
            job.kept,
            graves,
            replies,
            requeues,
            burials,
            dispatches,
            charges,
            set_nodes,
            gone_nodes,
            () if commit.settings is None else (encode_settings(commit.settings),),
            [part for worker in commit.forget_workers.items() for part in worker],
            (REPLY_LENGTH, REPLY_KEEP, self._keys.lane_name_from),
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
        self.kinds = (self.pools, self.lanes, self.outcomes, self.replies)
        self.kept: list[Any] = []
        self.ended: dict[int, list[str]] = {}

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
            if header.result_ttl > 0:
                self.kept += self._outcome(header, settlement.completion)
            if header.reply_to:
                self.ended.setdefault(self.replies.number(header.reply_to), []).append(header.job_id)
            if settlement.bury:
                preamble = encode_preamble(str(header.lane), settlement.bury, job=True)
                graves += (number, preamble)
        return ended, graves

    def requeues(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for requeue in commit.requeues:
            lease = requeue.lease
            header = lease.header
            if header.result_ttl > 0:
                # The job ends here if it cannot go back; nothing was measured of this attempt.
                end = Completion(JobState.DEAD, lease.attempt, lease.dispatched_at, 0.0, error=ENTRY_GONE)
                outcome = self._outcome(header, end)
            else:
                outcome = (0, 0, b"")
            items += (
                lease.token,
                self.pools.number(header.lane.pool),
                self.lanes.number(header.lane),
                requeue.attempts,
                requeue.losses,
                encode_preamble(str(header.lane), ENTRY_GONE, job=True),
                *outcome,
                self.replies.number(header.reply_to) if header.reply_to else 0,
                header.job_id,
            )
        return items

    def burials(self, commit: Commit) -> list[Any]:
        items: list[Any] = []
        for burial in commit.burials:
            preamble = encode_preamble(str(burial.lane), burial.reason, job=False)
            items += (self.lanes.number(burial.lane), burial.raw, preamble)
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


def _position(commit: Commit) -> tuple[str, str, str, str]:
    position = commit.position
    return position.events, position.wake, _after(position.events), _after(position.wake)


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
