"""Every key of the data model, in one place.

All keys of a namespace start with ``drr:{namespace}:``. The braces make the namespace the hash tag, so that
a cluster keeps them on one shard and one function call may touch any of them. Names hold no ``:`` and no
brace (`drr.model.check_name`), so no two things meet in one key.
"""

from __future__ import annotations

from typing import Final

from drr.backend import check_lane
from drr.errors import InvalidName, InvalidValue, MalformedMessage
from drr.model import Lane, TenantPath, check_name

GROUP: Final = "workers"
"""The consumer group of every pool stream. A consumer is ``worker:incarnation``."""

_CACHE_LIMIT = 100_000


class Keys:
    """The keys of one namespace. Raises `InvalidName` for names that cannot be in a key."""

    def __init__(self, namespace: str) -> None:
        self.namespace = check_name("namespace", namespace)
        self.prefix = f"drr:{{{namespace}}}:"
        self.schema = self.prefix + "schema"
        """hash: ``number`` of the schema, ``library`` hash of the newest function library."""
        self.sequence = self.prefix + "sequence"
        """string: the number of the last job submitted."""
        self.active = self.prefix + "active"
        """set: the names of all lanes that hold jobs."""
        self.wake = self.prefix + "wake"
        """stream: an entry for each lane that was empty and is not any more."""
        self.events = self.prefix + "events"
        """stream: what workers report, and that a worker came, changed or left."""
        self.leases = self.prefix + "leases"
        """hash: for every attempt in flight token to lease record, and ``#`` + sequence number to token."""
        self.workers = self.prefix + "workers"
        """hash: ``name:incarnation``, ``name:renewals``, ``name:shape``, ``name:held`` of every worker."""
        self.leader = self.prefix + "leader"
        """hash: ``token``, ``renewals``, ``passes``."""
        self.position = self.prefix + "position"
        """hash: ``events`` and ``wake``, the last ids that a commit has dealt with."""
        self.resigned = self.prefix + "resigned"
        """stream of one entry: the last resignation."""
        self.nodes = self.prefix + "nodes"
        """hash: pool and path to account."""
        self.settings = self.prefix + "settings"
        """string: everything about entitlement."""
        self.admission = self.prefix + "admission"
        """hash: quotas by tenant (``acme``, ``acme/web``, ``*`` for others), and ``limit:name`` of each limit."""
        self.depth = self.prefix + "depth"
        """hash: waiting jobs of each tenant, and under ``tenant#`` their micro-worker-seconds."""
        self.due = self.prefix + "due"
        """sorted set: numbers of the delayed jobs (8 bytes) by due time in seconds."""
        self.delayed = self.prefix + "delayed"
        """hash: number of a delayed job to the name of its lane, a line break and its frame."""
        self.back = self.prefix + "back"
        """hash: lane name to how many put-back entries stand at its head, ``#`` + number to the attempts of each."""
        self.requests = self.prefix + "requests"
        """stream: what is asked of the leader."""
        self.stopping = self.prefix + "stopping"
        """hash: tokens of running attempts that are to be stopped."""
        self.stops = self.prefix + "stops"
        """stream: the same tokens, for workers that listen."""
        self.estimates = self.prefix + "estimates"
        """hash: pool, path and task to what was learned of it."""
        self.changes = self.prefix + "changes"
        """list: the log of changes to entitlement, latest first."""
        self.dead = self.prefix + "dead"
        """hash: number to dead letter."""
        self.graves = self.prefix + "graves"
        """sorted set: numbers of all dead letters."""
        self.status = self.prefix + "status"
        """string: the leader's last description of its tree."""
        self._lane_prefix = self.prefix + "lane:"
        self.lane_name_from = len(self._lane_prefix) + 1
        """Where in a lane's key (counted from 1) its name begins."""
        self._lanes: dict[Lane, str] = {}

    def lane(self, lane: Lane) -> str:
        """List: the frames of the jobs that wait in a lane."""
        key = self._lanes.get(lane)
        if key is None:
            try:
                check_lane(lane)
            except InvalidValue as error:
                raise InvalidName("lane", lane, error.rule) from None
            if len(self._lanes) >= _CACHE_LIMIT:
                self._lanes.clear()
            key = self._lanes[lane] = self._lane_prefix + str(lane)
        return key

    def pool(self, pool: str) -> str:
        """Stream: the dispatched attempts of a pool."""
        return f"{self.prefix}pool:{check_name('pool', pool)}"

    def outcome(self, sequence: int, nonce: str) -> str:
        """String: how a job ended; expires."""
        return f"{self.prefix}outcome:{sequence}~{nonce}"

    def graves_of(self, organisation: str) -> str:
        """Sorted set: numbers of an organisation's dead letters."""
        return f"{self.prefix}graves:{check_name('organisation', organisation)}"

    def history(self, organisation: str) -> str:
        """List: an organisation's jobs that ended, latest first; expires."""
        return f"{self.prefix}history:{check_name('organisation', organisation)}"

    def usage(self, organisation: str, day: int) -> str:
        """Hash: an organisation's account of a day (Unix time / 86,400); expires."""
        return f"{self.prefix}usage:{check_name('organisation', organisation)}:{day}"

    def alias(self, path: TenantPath, name: str) -> str:
        """String: id of the job that was submitted with a key or name; expires."""
        return f"{self.prefix}alias:{':'.join(path)}:{check_name('key', name)}"

    def bucket(self, path: TenantPath) -> str:
        """String: a tenant's token bucket; expires when it is full again."""
        return f"{self.prefix}bucket:{':'.join(path)}"

    def attendance(self, dispatcher: str) -> str:
        """String: counter of a dispatcher's signs of life; expires."""
        return f"{self.prefix}attendance:{check_name('dispatcher', dispatcher)}"

    def progress(self, sequence: int, nonce: str) -> str:
        """String: what a handler said last; expires."""
        return f"{self.prefix}progress:{sequence}~{nonce}"

    def reply(self, client: str) -> str:
        """Stream: ids of a client's jobs that have ended; expires."""
        return f"{self.prefix}reply:{check_name('client', client)}"

    def calls(self, client: str) -> str:
        """Hash: a client's last calls of submit, call number to first sequence number; expires."""
        return f"{self.prefix}calls:{check_name('client', client)}"


def lane_of(name: bytes) -> Lane:
    """Return the lane that ``pool:organisation:project:priority+limit`` names; `MalformedMessage` if none."""
    try:
        return Lane.parse(name.decode("ascii"))
    except ValueError as error:
        raise MalformedMessage("lane name", str(error)[:200]) from None


def node_field(pool: str, path: TenantPath) -> str:
    """Return the field of `Keys.nodes` for a node of a pool's tree."""
    return ":".join((pool, *path))


def node_of(field: bytes) -> tuple[str, TenantPath]:
    """Return the pool and path of a field of `Keys.nodes`; `MalformedMessage` if it is none."""
    try:
        pool, *path = (check_name("node", part) for part in field.decode("ascii").split(":"))
    except (ValueError, InvalidName) as error:
        raise MalformedMessage("node", str(error)[:200]) from None
    return pool, tuple(path)


def consumer(name: str, incarnation: str) -> str:
    """Return the consumer that an incarnation of a worker reads as."""
    return f"{check_name('worker', name)}:{check_name('incarnation', incarnation)}"
