"""Every key of the data model, in one place.

All keys of a namespace start with ``drr:{namespace}:``. The braces make the namespace the hash tag, so that
a cluster keeps them on one shard and one function call may touch any of them. Names hold no ``:`` and no
brace (`drr.model.check_name`), so no two things meet in one key.
"""

from __future__ import annotations

from typing import Final

from drr.errors import InvalidName, MalformedMessage
from drr.model import PRIORITIES, Lane, TenantPath, check_name

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
        self.dead = self.prefix + "dead"
        """list: dead letters."""
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
            check_name("pool", lane.pool)
            for name in lane.path:
                check_name("tenant", name)
            if not lane.path or type(lane.priority) is not int or lane.priority not in PRIORITIES:
                raise InvalidName("lane", lane, "a lane has a pool, a tenant path and a priority of 0 to 9")
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

    def reply(self, client: str) -> str:
        """Stream: ids of a client's jobs that have ended; expires."""
        return f"{self.prefix}reply:{check_name('client', client)}"

    def calls(self, client: str) -> str:
        """Hash: a client's last calls of submit, call number to first sequence number; expires."""
        return f"{self.prefix}calls:{check_name('client', client)}"


def lane_of(name: bytes) -> Lane:
    """Return the lane that ``pool:organisation:project:priority`` names; `MalformedMessage` if none."""
    try:
        pool, *path, priority = name.decode("ascii").split(":")
        check_name("pool", pool)
        for part in path:
            check_name("tenant", part)
    except (ValueError, InvalidName) as error:
        raise MalformedMessage("lane name", str(error)[:200]) from None
    if not path or len(priority) != 1 or priority not in "0123456789":
        raise MalformedMessage("lane name", "it is not pool:organisation:project:priority")
    return Lane(pool, tuple(path), int(priority))


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
