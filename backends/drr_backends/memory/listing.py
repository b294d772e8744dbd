"""Where jobs stand one by one; dead letters; accounts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from drr.backend import DeadLetter, Located, Struck, Usage, UsageKey
from drr.errors import InvalidValue
from drr.model import Header, JobState, JobStatus, Lane, parse_job_id
from drr_backends.memory.records import COUNTS
from drr_backends.memory.store import Store


def look_up(store: Store, job_id: str) -> JobStatus | None:
    """Return where a job stands, by `ClientPort.look_up`."""
    try:
        lane, sequence, _ = parse_job_id(job_id)
    except InvalidValue:
        return None
    kept = store.results.get(job_id)
    if kept is not None and kept[0] > store.clock.monotonic():
        completion = kept[1]
        return JobStatus(job_id, completion.state, completion.attempt, completion)
    token = store.running.get(sequence)
    if token is not None:
        lease = store.leases[token]
        # Another id with this number is that of a job that the store has lost.
        return JobStatus(job_id, JobState.RUNNING, lease.attempt) if lease.header.job_id == job_id else None
    delayed = store.delayed.get(sequence)
    if delayed is not None:
        header = delayed[1].head
        assert isinstance(header, Header)
        return JobStatus(job_id, JobState.DELAYED, header.attempts) if header.job_id == job_id else None
    attempts = _attempts_of_waiting(store, lane, sequence)
    return JobStatus(job_id, JobState.QUEUED, attempts) if attempts is not None else None


def _attempts_of_waiting(store: Store, lane: Lane, sequence: int) -> int | None:
    """Return how often a waiting job was tried; ``None`` if it does not wait, as far as the port can tell."""
    for entry in store.lanes.get(lane, ()):
        head = entry.head
        if isinstance(head, Struck):
            if not store.struck.get(head.sequence, False):
                return 0 if head.sequence <= sequence else None
        elif isinstance(head, Header):
            if head.sequence == sequence:
                return head.attempts
            if not head.returned:
                return 0 if head.sequence < sequence else None
    return None


def locate(store: Store, job_id: str) -> Located | None:
    """Return a job that waits in its lane or is delayed, by `DispatcherPort.locate`."""
    try:
        lane, sequence, _ = parse_job_id(job_id)
    except InvalidValue:
        return None
    delayed = store.delayed.get(sequence)
    if delayed is not None:
        header = delayed[1].head
        return Located(header, True) if isinstance(header, Header) and header.job_id == job_id else None
    for entry in store.lanes.get(lane, ()):
        if isinstance(entry.head, Header) and entry.head.job_id == job_id:
            return Located(entry.head, False)
    return None


def letters_of(store: Store, organisation: str, limit: int, after: int) -> list[DeadLetter]:
    """Return dead letters of one organisation, or of all, oldest first."""
    found = (
        letter
        for number, letter in store.dead.items()
        if number > after and (not organisation or letter.lane.path[0] == organisation)
    )
    return list(islice(found, limit))


def purge(store: Store, numbers: Sequence[int]) -> int:
    """Delete dead letters; return how many there were."""
    return sum(store.dead.pop(number, None) is not None for number in numbers)


def usage_of(store: Store, organisation: str, since: int, until: int) -> dict[UsageKey, Usage]:
    """Return an organisation's accounts."""
    kept = store.usage.get(organisation, {})
    return {
        key: Usage(*counts[:COUNTS], *(micros / 1e6 for micros in counts[COUNTS:]))
        for key, counts in kept.items()
        if since <= key.hour < until
    }
