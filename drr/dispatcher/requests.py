"""What clients ask of the leader: cancel, revive, put plans into force, assign an organisation.

Theory of operation
    Where a job stands is known here if it runs, is put back by the pass in the making, or stands in a window.
    Otherwise the store is asked (`Requests.inquiry`, answered by `Requests.inform`) right before the pass that
    carries the request out, so with no commit in between: only commits move jobs, hence what the store said still
    holds in that pass. An answer that the pass had no use for is thrown away. If the commit fails, the requests are
    still unread in the store, since the position goes with the commit; the next engine carries them out.

    Requests of one batch of news are carried out in order, `REQUESTS_A_PASS` in a pass at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from drr.backend import (
    ITEM_LIMIT,
    STRIKE_LIMIT,
    ChangeRecord,
    DeadLetter,
    DropDelayed,
    Located,
    MalformedRequest,
    Request,
    RequestKind,
    Revival,
)
from drr.dispatcher.backlog import Backlog
from drr.dispatcher.batch import Batch
from drr.dispatcher.closing import Closer
from drr.dispatcher.counters import Counters
from drr.dispatcher.endings import end_unstarted, has_expired
from drr.dispatcher.entitlement import Entitlement
from drr.dispatcher.liveness import Hold, Liveness
from drr.errors import DrrError, InvalidValue
from drr.model import JobState, Lane, check_name, parse_job_id

log = logging.getLogger("drr.dispatcher")

REQUESTS_A_PASS: Final = STRIKE_LIMIT
"""As many as the store can locate in one call."""


class Inquiry(NamedTuple):
    """What is to be read before the next pass: jobs due ``until`` a time, where ``jobs`` stand, dead ``letters``."""

    until: float | None
    jobs: list[str]
    letters: list[int]

    @property
    def empty(self) -> bool:
        """Whether nothing is to be read."""
        return self.until is None and not self.jobs and not self.letters


class Requests:
    """Carries requests out, for one engine. ``entitle`` binds a new entitlement and notes the change."""

    def __init__(
        self,
        backlog: Backlog,
        liveness: Liveness,
        closer: Closer,
        tally: Counters,
        entitle: Callable[[Entitlement], None],
    ) -> None:
        self._backlog = backlog
        self._liveness = liveness
        self._closer = closer
        self._tally = tally
        self._entitle = entitle
        self._located: dict[str, Located | None] = {}
        self._letters: dict[int, DeadLetter | None] = {}
        self._running: dict[int, Hold] | None = None
        """Holds by job number, made for a pass that needs it."""
        self._left = REQUESTS_A_PASS
        self.dropped: set[str] = set()
        """Delayed jobs that the pass in the making has taken away."""

    # --- what must be read ----------------------------------------------------------------------------

    @staticmethod
    def inquiry(waiting: Iterable[Request | MalformedRequest]) -> tuple[list[str], list[int]]:
        """Return the jobs and dead letters that the next requests are about."""
        jobs: dict[str, None] = {}
        letters: dict[int, None] = {}
        for request, _ in zip(waiting, range(REQUESTS_A_PASS), strict=False):
            if isinstance(request, Request):
                if request.kind is RequestKind.CANCEL and _is_job(request.subject):
                    jobs[request.subject] = None
                elif request.kind is RequestKind.REVIVE and (number := _number(request.subject)) is not None:
                    letters[number] = None
        return list(jobs), list(letters)

    def inform(self, located: Mapping[str, Located | None], letters: Mapping[int, DeadLetter | None]) -> None:
        """Take over what the store said; the next pass acts on it."""
        self._located.update(located)
        self._letters.update(letters)

    def begin(self) -> None:
        """A pass begins."""
        self._left = REQUESTS_A_PASS
        self._running = None
        self.dropped.clear()

    def end(self) -> None:
        """A pass was made: where jobs stand is no longer known."""
        self._located.clear()
        self._letters.clear()

    # --- carrying out ---------------------------------------------------------------------------------

    def carry_out(self, request: Request | MalformedRequest, batch: Batch, now: float, wall: float) -> bool:
        """Carry a request out in this pass; return whether that was possible, else it is for the next."""
        if self._left <= 0:
            return False
        if isinstance(request, MalformedRequest):
            self._tally.malformed += 1
            log.warning("a request cannot be decoded (%s: %.80r)", request.reason, request.raw)
            done = True
        elif request.kind is RequestKind.CANCEL:
            done = self._cancel(request.subject, batch, now, wall)
        elif request.kind is RequestKind.REVIVE:
            done = self._revive(request.subject, batch, wall)
        else:
            done = self._change(request, batch, wall)
        self._left -= done
        return done

    def _cancel(self, job_id: str, batch: Batch, now: float, wall: float) -> bool:
        try:
            lane, sequence, nonce = parse_job_id(job_id)
        except InvalidValue:
            return self._ignore("a cancel names no job: %.200r", job_id)
        hold = self._find_running(sequence, job_id)
        if hold is not None:
            self._mark(hold, batch, now)
            return True
        for back in batch.backs:
            if back.lease.header.sequence == sequence and back.lease.header.job_id == job_id:
                if batch.full:
                    return False
                self._closer.cancel_back(back, batch, wall)
                return True
        if any(revival.header.job_id == job_id for revival in batch.revivals):
            return False
        return self._cancel_waiting(job_id, lane, sequence, nonce, batch, wall)

    def _cancel_waiting(self, job_id: str, lane: Lane, sequence: int, nonce: str, batch: Batch, wall: float) -> bool:
        place = self._backlog.find(lane, sequence, nonce)
        if place is not None:
            window, index, header = place
            self._backlog.doom(window, index, end_unstarted(header, JobState.CANCELLED, wall))
        elif job_id not in self._located:
            return False
        elif (located := self._located[job_id]) is None or job_id in self.dropped:
            return self._ignore("job %s is to be cancelled, but it neither waits nor runs", job_id)
        elif located.delayed:
            if len(batch.drops_delayed) >= ITEM_LIMIT:
                return False
            self.dropped.add(job_id)
            completion = end_unstarted(located.header, JobState.CANCELLED, wall)
            batch.drops_delayed.append(DropDelayed(located.header, completion))
        elif self._backlog.is_doomed(lane, sequence) or any(item.header.job_id == job_id for item in batch.strikes):
            return self._ignore("job %s is to be cancelled again", job_id)
        elif not batch.room_for_strike:
            return False
        else:
            completion = end_unstarted(located.header, JobState.CANCELLED, wall)
            self._backlog.strike(located.header, completion, batch)
        self._tally.cancelled += 1
        return True

    def _find_running(self, sequence: int, job_id: str) -> Hold | None:
        if self._running is None:
            self._running = {hold.lease.header.sequence: hold for hold in self._liveness.holds.values()}
        hold = self._running.get(sequence)
        if hold is None or hold.lease.token not in self._liveness.holds or hold.lease.header.job_id != job_id:
            return None
        return hold

    def _mark(self, hold: Hold, batch: Batch, now: float) -> None:
        if not hold.lease.cancelled:
            hold.lease = replace(hold.lease, cancelled=True)
            self._liveness.cancel(hold, now)
            batch.marked.append(hold.lease.token)

    def _revive(self, subject: str, batch: Batch, wall: float) -> bool:
        number = _number(subject)
        if number is None:
            return self._ignore("a revival names no dead letter: %.200r", subject)
        if number not in self._letters:
            return False
        letter = self._letters[number]
        if letter is None or letter.header is None or any(revival.number == number for revival in batch.revivals):
            return self._ignore("dead letter %s is not there, or holds no job that could be revived", subject)
        header = letter.header
        if has_expired(header, wall):
            return self._ignore("dead letter %s stays: the deadline of its job has passed", subject)
        if any(revival.header.lane == header.lane for revival in batch.revivals):
            return False  # one of a lane in a pass: so their order cannot be in doubt
        batch.revivals.append(Revival(number, header))
        self._backlog.give_back(replace(header, attempts=0, losses=0, failures=0, returned=True))
        return True

    def _change(self, request: Request, batch: Batch, wall: float) -> bool:
        """Put plans into force, or an organisation on a plan; a mistake changes nothing and is recorded."""
        refused = ""
        what = f"plans {request.subject or 'without a name'}"
        entitlement = self._backlog.entitlement
        try:
            if request.kind is RequestKind.PLANS:
                self._entitle(entitlement.with_plans(request.body.decode(), request.subject))
            else:
                organisation, _, plan = request.subject.partition(" ")
                what = f"{organisation} on plan {plan}" if plan else f"{organisation} on the plan of the plans file"
                check_name("organisation", organisation)
                self._entitle(entitlement.with_assignment(organisation, plan))
        except (DrrError, UnicodeDecodeError) as error:
            refused = str(error) or type(error).__name__
            self._tally.ignored += 1
            log.error("%s: refused: %s", what, refused)
        batch.changes.append(ChangeRecord(wall, request.id, request.by, what, refused))
        return True

    def _ignore(self, why: str, subject: str) -> bool:
        self._tally.ignored += 1
        log.info(why, subject)
        return True


def _is_job(subject: str) -> bool:
    try:
        parse_job_id(subject)
    except InvalidValue:
        return False
    return True


def _number(subject: str) -> int | None:
    return int(subject) if subject.isascii() and subject.isdecimal() and len(subject) <= 16 else None
