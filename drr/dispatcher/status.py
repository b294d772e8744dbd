"""The leader's description of its tree: the values, and their encoding as one blob in the store.

The blob is a msgpack map, ``version`` first; `decode_status` gives back the values. It is for people and
for the command line: nothing that decides anything ever reads it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, cast

from drr.errors import MalformedMessage
from drr.model import TenantPath
from drr.wire import pack, unpack

STATUS_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node of a pool's tree; the empty path is the pool.

    ``queued``: jobs that wait in the store; ``running``: live leases. ``credit``, ``charged``, ``lost`` in
    worker-seconds: the latter two since this leader took over, ``charged`` without what was refunded.
    ``share``: fraction of all worker-seconds that the pool was charged in the last minute. ``waits``: why
    nothing of it starts now, or empty: "no workers", "no free slot", "capped", "reserve". ``lane``:
    "parked", "floor", "under cap" or "borrowing". ``oldest_wait``: seconds since the submission of the job
    that starts next, 0 if none waits; ``wait_target``: how long it should be at most by the tenant's plan, if that
    says so. Caps and floor are as they are resolved now; ``None``: no cap.
    """

    path: TenantPath
    weight: float
    queued: int
    running: int
    credit: float
    charged: float
    lost: float
    starts: int
    losses: int
    share: float
    lane: str
    waits: str
    soft_cap: int | None
    hard_cap: int | None
    floor: int
    oldest_wait: float
    wait_target: float | None = None

    @property
    def late(self) -> bool:
        """Whether the job that starts next has waited longer than it should."""
        return self.wait_target is not None and self.oldest_wait > self.wait_target


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One pool. ``free``: slots that could take a job now; ``idle_capped``: those of them that stay idle
    although jobs wait, because of caps or the reserve. ``withheld``: free slots of workers that fell silent.
    ``active``: projects with jobs waiting. ``charged``: worker-seconds, all tenants together. ``nodes`` are
    the most relevant ones, parents before children; ``omitted`` counts the others.
    """

    name: str
    workers: int
    slots: int
    free: int
    idle_capped: int
    withheld: int
    queued: int
    running: int
    active: int
    charged: float
    nodes: tuple[NodeStatus, ...]
    omitted: int


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A shared limit: its settings (``None``: no bound), jobs that hold it, and jobs known here that wait for it."""

    name: str
    concurrency: int | None
    rate: float | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class BacklogStatus:
    """What backlog limits count of an organisation, in all pools: jobs, worker-seconds, and how many are put off."""

    organisation: str
    jobs: int
    worker_seconds: float
    delayed: int


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """What the store keeps of what it acknowledges, as it said when the leader last asked.

    ``server``: kind and version, or empty; ``level``: a `drr.durability.Level`; ``cautions``: what is wrong with its
    settings, in words, by `drr.durability.Caution`.
    """

    server: str = ""
    level: str = "unknown"
    cautions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """What a leader says of itself. ``at``: its wall clock. ``counters`` are `Counters` by name.

    ``backlogs``: of organisations that are shown in some pool. ``committed_at``: its wall clock at its last commit,
    to a second; ``None`` if it has made none.
    """

    at: float
    dispatcher: str
    version: str
    leading_for: float
    counters: dict[str, int]
    pools: tuple[PoolStatus, ...]
    limits: tuple[LimitStatus, ...] = ()
    backlogs: tuple[BacklogStatus, ...] = ()
    store: StoreStatus = field(default_factory=StoreStatus)
    committed_at: float | None = None


def encode_status(status: Status) -> bytes:
    """Return the blob for `Backend.write_status`."""
    return pack({"version": STATUS_VERSION, **asdict(status)})


def decode_status(blob: bytes) -> Status:
    """Return what `encode_status` was given; raises `MalformedMessage` for anything else.

    Unknown fields of a later version are ignored, missing ones are an error, apart from ``store`` and
    ``committed_at``, which earlier versions did not write.
    """
    raw = unpack("status", blob)
    try:
        pools = tuple(_read_pool(pool) for pool in raw["pools"])
        limits = tuple(_read(LimitStatus, limit) for limit in raw["limits"])
        backlogs = tuple(_read(BacklogStatus, backlog) for backlog in raw["backlogs"])
        later = {
            "store": _read(StoreStatus, raw["store"]) if "store" in raw else StoreStatus(),
            "committed_at": raw.get("committed_at"),
        }
        return cast(Status, _read(Status, raw, pools=pools, limits=limits, backlogs=backlogs, **later))
    except (KeyError, TypeError, AttributeError) as error:
        raise MalformedMessage("status", f"{type(error).__name__}: {error}") from error


def _read_pool(raw: dict[str, Any]) -> PoolStatus:
    nodes = tuple(_read(NodeStatus, node, path=tuple(node["path"])) for node in raw["nodes"])
    return cast(PoolStatus, _read(PoolStatus, raw, nodes=nodes))


def _read(kind: type[Any], raw: dict[str, Any], **replaced: Any) -> Any:
    names = [one.name for one in fields(kind)]
    return kind(**{name: replaced[name] if name in replaced else raw[name] for name in names})
