"""Every exception drr raises, in one shallow tree.

A message carries the offending value, the limit it broke and what to do about it; the same facts are
attributes of the exception, so that a caller never has to parse prose. Only classes that somebody can
catch to some purpose exist; programming errors inside drr stay ``AssertionError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class DrrError(Exception):
    """Base of every error that drr raises on purpose."""


class InvalidValue(DrrError, ValueError):
    """Raised when a value given by the caller is outside what is allowed.

    ``what`` names the thing, ``value`` is what was given, ``rule`` is what would be right.
    """

    def __init__(self, what: str, value: object, rule: str) -> None:
        self.what = what
        self.value = value
        self.rule = rule
        shown = repr(value)
        if len(shown) > 160:
            shown = shown[:157] + "..."
        super().__init__(f"{what} is {shown}, but {rule}")


class InvalidName(InvalidValue):
    """Raised when an organisation, project, pool, task, limit, worker or namespace name is not allowed."""


class InvalidPolicy(InvalidValue):
    """Raised when a weight, cap, floor, ceiling, quantum or reserve makes no sense."""


class InvalidConfiguration(InvalidValue):
    """Raised when settings contradict each other, such as a heartbeat that is not well below the lease."""


class Problem(NamedTuple):
    """One thing that is wrong in a file: where (key path, or line and column), what is there, and what would do."""

    key: str
    value: object
    rule: str


class PlansError(InvalidValue):
    """Raised when a plans file cannot be used; then nothing of it is.

    ``file`` names it, ``problems`` are all that were found, one in each line of the message; ``what``,
    ``value`` and ``rule`` are those of the first.
    """

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        first = problems[0]
        super().__init__(f"{file}: {first.key}", first.value, first.rule)
        self.file = file
        self.problems = tuple(problems)
        lines = [str(InvalidValue(f"{file}: {key}", value, rule)) for key, value, rule in self.problems]
        self.args = ("\n".join(lines),)


class UnknownPlan(InvalidValue):
    """Raised when somebody is put on a plan that the plans in force do not have; ``known`` are those they have."""

    def __init__(self, plan: str, known: Sequence[str], rule: str) -> None:
        super().__init__("plan", plan, rule)
        self.plan = plan
        self.known = tuple(known)


class TraceError(InvalidValue):
    """Raised when a trace cannot be read: names the file, the line (0 for the file as a whole), column and value."""

    def __init__(self, file: object, line: int, column: str, value: object, rule: str) -> None:
        self.file = str(file)
        self.line = line
        self.column = column
        where = [self.file]
        if line:
            where.append(f"line {line}")
        if column:
            where.append(f"column {column}" if line else column)
        super().__init__(", ".join(where), value, rule)


class PayloadTooLarge(InvalidValue):
    """Raised when an encoded payload or result is over its limit in bytes."""


class MalformedMessage(DrrError):
    """Raised when bytes from the store cannot be decoded within the limits.

    The dispatcher answers it with a dead letter; it never stops a loop.
    """

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"{what} cannot be decoded: {reason}")


class UnknownLease(DrrError):
    """Raised by the core when a token names no live lease: the attempt was settled or lost before.

    State is unchanged. A report of such an attempt (a zombie's) is refused by ignoring it.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        super().__init__(f"no live lease has the token {token!r}; its attempt was settled or lost before")


class DuplicateJob(DrrError):
    """Raised by the core when a job that it already holds is offered again. State is unchanged."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id!r} is already queued or running here")


class BackendError(DrrError):
    """Base of what can go wrong between drr and its store."""


class UnknownBackend(BackendError, ValueError):
    """Raised when no adapter is registered for the scheme of a store URL."""

    def __init__(self, url: str, scheme: str, known: list[str]) -> None:
        self.scheme = scheme
        self.known = known
        super().__init__(
            f"no backend is registered for scheme {scheme!r} of {url!r}; known schemes: {', '.join(known) or 'none'}"
        )


class StoreUnavailable(BackendError):
    """Raised when the store cannot be reached, drops the connection or does not answer in time.

    Whether a write took effect is then unknown.
    """


class StoreFull(BackendError):
    """Raised when the store refuses a write because it is out of memory; nothing was written."""


class NotReplicated(BackendError):
    """Raised when a submit is stored, but fewer replicas than wanted have acknowledged it in time.

    ``job_ids``: the jobs, which wait for their turn like any others. ``wanted`` and ``acknowledged``: replicas.
    ``timeout``: seconds that were waited. If the server is lost now and a replica takes over, they may be lost.
    """

    def __init__(self, job_ids: Sequence[str], wanted: int, acknowledged: int, timeout: float) -> None:
        self.job_ids = list(job_ids)
        self.wanted = wanted
        self.acknowledged = acknowledged
        self.timeout = timeout
        super().__init__(
            f"{len(self.job_ids)} jobs are stored, {self.job_ids[0]} first, but only {acknowledged} of {wanted} "
            f"replicas have acknowledged that within {timeout:g} s; do not submit them again without an idempotency "
            "key, and see whether the replicas follow"
        )


class AdmissionRefused(BackendError):
    """Base of refusals by a tenant's quota; nothing of the call was added.

    ``tenant``: path of the organisation or project whose quota it is. ``what`` is limited to ``limit``, ``depth`` of
    it is used. ``room``: how many more jobs would be taken now. ``retry_after``: seconds to wait before asking again;
    of a backlog always one, since nobody at the store knows how fast it drains.
    ``accepted``: of `Client.submit_many`, how many jobs were added before.
    """

    accepted = 0

    def __init__(
        self, tenant: tuple[str, ...], what: str, limit: float, depth: float, room: int, retry_after: float
    ) -> None:
        self.tenant = tenant
        self.what = what
        self.limit = limit
        self.depth = depth
        self.room = room
        self.retry_after = retry_after
        super().__init__(self._text())

    def _text(self) -> str:
        return (
            f"{'/'.join(self.tenant)}: {self.what} is limited to {self.limit:g}, {self.depth:g} of it is used and "
            f"there is room for {self.room} more jobs; try again after {self.retry_after:.3g} s, "
            "or ask for a larger quota"
        )


class BacklogFull(AdmissionRefused):
    """Raised when a tenant has as many jobs, or as much work, waiting as its quota allows."""


class RateLimited(AdmissionRefused):
    """Raised when a tenant submits faster than its quota allows."""


class JobExists(BackendError):
    """Raised when the id that a client chose for a job is taken within its project; ``job_id`` has it."""

    def __init__(self, name: str, job_id: str) -> None:
        self.name = name
        self.job_id = job_id
        super().__init__(
            f"the id {name!r} is taken by job {job_id}; choose another, "
            "or pass it as key= to get the first job instead"
        )


class UnknownLimit(BackendError):
    """Raised when a submitted job names a shared limit that is not defined; nothing of the call was added."""

    def __init__(self, limit: str) -> None:
        self.limit = limit
        super().__init__(
            f"there is no shared limit {limit!r}; define it under [limits.{limit}] in the plans file, "
            "or correct the name"
        )


class StoreUnsupported(BackendError):
    """Raised when the server is too old or lacks what drr needs."""


class StoreNotPrepared(BackendError):
    """Raised when the store lacks drr's function library or holds another schema; names the remedy."""


class StoreCorrupt(BackendError):
    """Raised when what the store holds contradicts itself in a way that drr cannot repair."""


class NotLeader(BackendError):
    """Raised when a fenced write is refused: another token leads, or the pass number is not the next.

    Nothing was written. The dispatcher drops its memory and loads again, or stands by.
    """


class NotLeading(DrrError):
    """Raised when settings are changed through a dispatcher that stands by; only the leader can change them.

    ``leader`` is the token of the leader as last seen, or empty.
    """

    def __init__(self, leader: str) -> None:
        self.leader = leader
        super().__init__(
            f"this dispatcher stands by (the leader is {leader or 'unknown'}); "
            "change settings through the leader, or wait until this one leads (wait_leading)"
        )


class CommitRefused(BackendError):
    """Raised when a commit contradicts the store (a lane's head or a lease is not what it names).

    Nothing was written. The dispatcher drops its memory and loads again.
    """


class WorkerNameInUse(BackendError):
    """Raised when a second live worker wants a name that a live one holds."""

    def __init__(self, worker: str, incarnation: str) -> None:
        self.worker = worker
        self.incarnation = incarnation
        super().__init__(
            f"worker name {worker!r} is held by live incarnation {incarnation!r}; "
            "give each worker its own name, or wait until the other has left or missed one lease"
        )


class JobError(DrrError):
    """Base of what a client learns about one job."""


class JobFailed(JobError):
    """Raised by a handle's ``result`` when the job's last attempt failed; carries the worker's account of it."""

    def __init__(self, job_id: str, error: str, attempt: int) -> None:
        self.job_id = job_id
        self.error = error
        self.attempt = attempt
        super().__init__(f"job {job_id} failed at attempt {attempt}: {error}")


class JobCancelled(JobError):
    """Raised by a handle's ``result`` when the job was cancelled."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} was cancelled")


class JobExpired(JobError):
    """Raised by a handle's ``result`` when the job's deadline passed before it was started."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} was not started before its deadline")


class RetryAfter(DrrError):
    """Raised by a handler: the attempt has failed, and the next should begin after ``seconds``.

    It counts as a failed attempt of the job's retry policy; with none left the job fails with this text.
    ``seconds``: 0 to 90 days; raises `InvalidValue` for others.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        given: object = seconds  # whatever the annotation says: a handler may have no type checker
        if not isinstance(given, int | float) or not 0.0 <= given <= 90 * 86_400.0:
            raise InvalidValue("pause before the next attempt", seconds, "it must be between 0 and 7776000 seconds")
        self.seconds = float(seconds)
        self.reason = reason
        super().__init__(reason or f"to be tried again after {seconds:g} s")


class UnknownTask(JobError):
    """Raised when an attempt names a task that its worker has no handler for; the job fails with this text."""

    def __init__(self, worker: str, task: str, known: list[str]) -> None:
        self.worker = worker
        self.task = task
        self.known = known
        shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        super().__init__(f"worker {worker} has no task {task!r}; it knows: {shown or 'none'}")


class ResultNotKept(JobError):
    """Raised when the end of a job is asked for that was submitted with ``result_ttl=0``: nothing of it is kept."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id} was submitted with result_ttl=0, so nothing is kept of how it ends; "
            "submit it with a result_ttl above 0 to wait for it"
        )


class JobNotFound(JobError):
    """Raised when the store knows nothing of a job: it never existed, or its record has expired."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id} is unknown to the store: it never existed, kept no result, or its record has expired"
        )


class DeadLetterNotFound(DrrError):
    """Raised when there is no dead letter of a number; ``number`` is it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(
            f"there is no dead letter {number}: its job was queued again, it was deleted, or there never was one; "
            "list them to see which there are"
        )


class DeadlinePassed(DrrError):
    """Raised when a dead job is to be queued again whose deadline is over: it would only expire. ``number``: its."""

    def __init__(self, number: int, deadline: float, now: float) -> None:
        self.number = number
        self.deadline = deadline
        super().__init__(
            f"the deadline of the job of dead letter {number} was {now - deadline:.0f} s ago, "
            "so it would expire at once; submit it anew, or delete the letter"
        )


class ServerNotFound(DrrError):
    """Raised when an embedded server is wanted and no server binary can be found; says what to install."""


class ServerFailed(DrrError):
    """Raised when an embedded server does not start, or is asked for something that needs it running.

    ``log`` holds the last lines the server wrote, where there are any; the message shows them.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        self.reason = reason
        self.log = log
        super().__init__(f"{reason}; its log ends with:\n{log}" if log else reason)


class ReportUnavailable(DrrError):
    """Raised when a report is wanted and the library that draws its charts is not installed; says what to install."""

    def __init__(self, library: str) -> None:
        self.library = library
        super().__init__(
            f"the report's charts need {library}, which is not installed: pip install 'drr-dispatcher[report]'"
        )


class ProbeUnavailable(DrrError):
    """Raised when the probe cannot listen at its address: taken, not of this machine, or not permitted."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"the probe cannot listen at {address}: {reason}; give it another address")


class DemoFailed(DrrError):
    """Raised when a part of the demo does not get ready, or ends by itself; the message shows the end of its log."""

    def __init__(self, reason: str, log: str = "") -> None:
        self.reason = reason
        self.log = log
        super().__init__(f"{reason}; its log ends with:\n{log}" if log else reason)


class SubmitPending(StoreUnavailable):
    """Raised when the store did not answer a submit that is recorded in the client's outbox: it will be repeated.

    Do not submit the ``jobs`` jobs again. They are added once, as soon as the store answers, or at the client's next
    start with the outbox ``path``.
    """

    def __init__(self, path: object, jobs: int, reason: object) -> None:
        self.path = str(path)
        self.jobs = jobs
        super().__init__(
            f"{reason}; the submit of {jobs} jobs is recorded in the outbox {path} and is repeated until the store "
            "answers: do not submit them again"
        )


class OutboxError(DrrError):
    """Base of what can go wrong with a client's outbox; ``path`` is its file."""

    path: str


class OutboxFull(OutboxError):
    """Raised when a submit has no room in the outbox; it was neither recorded nor sent.

    ``what`` ("jobs" or "bytes") is limited to ``limit``, ``held`` of it is used and ``wanted`` more were to come.
    """

    def __init__(self, path: object, what: str, held: int, wanted: int, limit: int) -> None:
        self.path = str(path)
        self.what = what
        self.held = held
        self.wanted = wanted
        self.limit = limit
        super().__init__(
            f"the outbox {path} holds {held} {what} of at most {limit}, so that {wanted} more have no room; wait "
            f"until the store has confirmed some, deal with what is set aside (Outbox.aside), or raise max_{what}"
        )


class OutboxInUse(OutboxError):
    """Raised when another client, of this or another process, holds the outbox's file."""

    def __init__(self, path: object) -> None:
        self.path = str(path)
        super().__init__(f"the outbox {path} is held by another client; give each client a file of its own")


class OutboxCorrupt(OutboxError):
    """Raised when the outbox's file is damaged, is no outbox, or is of another namespace; it is left as it is."""

    def __init__(self, path: object, reason: str) -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(
            f"the outbox {path} cannot be used: {reason}; move it away together with {path}-wal, keep both for the "
            "jobs in them, and start with a new file"
        )


class OutboxFailed(OutboxError):
    """Raised when the outbox's file cannot be opened, read or written, for instance because its disk is full."""

    def __init__(self, path: object, what: str, reason: object) -> None:
        self.path = str(path)
        self.reason = str(reason)
        super().__init__(
            f"the outbox {path} cannot {what}: {reason}; nothing was sent. Check the disk's room and the file's "
            "rights"
        )
