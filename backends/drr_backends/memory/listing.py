"""Where jobs stand: one by one, and as listings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

from drr.backend import HISTORY_SECONDS, DeadLetter, Listed, Located, Page, Struck, Usage, UsageKey
from drr.errors import InvalidValue
from drr.model import Header, JobState, JobStatus, Lane, TenantPath, parse_job_id
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


def list_jobs(store: Store, path: TenantPath, state: JobState, limit: int, after: str) -> Page:
    """Return part of a listing, by `ClientPort.list_jobs`. A cursor names the last job that was listed."""
    try:
        at, _, name = after.rpartition(" ")
        if after:
            parse_job_id(name.removeprefix("-"))
        if after and state is JobState.DELAYED:
            float(at)
    except ValueError:  # `InvalidValue` is one
        text = "it must be empty or one that this store returned"
        raise InvalidValue("cursor of a listing", after, text) from None
    found = list(islice(_listed(store, path, state, after), limit))
    return Page(tuple(found), _mark(store, state, found[-1]) if len(found) == limit else "")


def _mark(store: Store, state: JobState, listed: Listed) -> str:
    """Return what a listing goes on after, once this job has left the place where it was listed."""
    if state is JobState.DELAYED:
        return f"{listed.at!r} {listed.job_id}"
    lane, sequence, _ = parse_job_id(listed.job_id)
    came_back = state is JobState.QUEUED and any(
        isinstance(entry.head, Header) and entry.head.sequence == sequence and entry.head.returned
        for entry in store.lanes[lane]
    )
    return f"{'-' if came_back else ''}{listed.job_id}"


def _listed(store: Store, path: TenantPath, state: JobState, last: str) -> Iterator[Listed]:
    if state is JobState.QUEUED:
        return _queued(store, path, last)
    if state is JobState.RUNNING:
        return _running(store, path, last)
    if state is JobState.DELAYED:
        return _delayed(store, path, last)
    return _ended(store, path, state, last)


def _queued(store: Store, path: TenantPath, last: str) -> Iterator[Listed]:
    came_back, name = last.startswith("-"), last.removeprefix("-")
    where, sequence, _ = parse_job_id(name) if name else (None, 0, "")
    for lane in sorted(store.lanes, key=str):
        if lane.path[: len(path)] != path or (where is not None and str(lane) < str(where)):
            continue
        heads = [entry.head for entry in store.lanes[lane] if isinstance(entry.head, Header)]
        if lane == where and came_back:
            # If it has left, so has all that was before it.
            start = next((place for place, head in enumerate(heads, 1) if head.sequence == sequence), 0)
            heads = heads[start:]
        elif lane == where:
            heads = [head for head in heads if not head.returned and head.sequence > sequence]
        for head in heads:
            yield _of_header(head, JobState.QUEUED, head.submitted_at)


def _running(store: Store, path: TenantPath, last: str) -> Iterator[Listed]:
    sequence = parse_job_id(last)[1] if last else 0
    for lease in sorted(store.leases.values(), key=lambda lease: lease.header.sequence):
        header = lease.header
        if header.sequence > sequence and header.lane.path[: len(path)] == path:
            yield Listed(header.job_id, header.task, JobState.RUNNING, lease.attempt, header.submitted_at)


def _delayed(store: Store, path: TenantPath, last: str) -> Iterator[Listed]:
    at, _, job_id = last.partition(" ")
    start = bisect_right(store.due, (float(at), parse_job_id(job_id)[1])) if last else 0
    for due_at, sequence in store.due[start:]:
        head = store.delayed[sequence][1].head
        if isinstance(head, Header) and head.lane.path[: len(path)] == path:
            yield _of_header(head, JobState.DELAYED, due_at)


def _ended(store: Store, path: TenantPath, state: JobState, last: str) -> Iterator[Listed]:
    kept = store.history.get(path[0])
    if kept is None or kept.touched <= store.clock.monotonic() - HISTORY_SECONDS:
        return
    jobs = iter(kept.jobs)
    if last:
        for _, listed in jobs:
            if listed.job_id == last:
                break
    for its_path, listed in jobs:
        if listed.state is state and its_path[: len(path)] == path:
            yield listed


def _of_header(header: Header, state: JobState, at: float) -> Listed:
    return Listed(header.job_id, header.task, state, header.attempts, at)


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
