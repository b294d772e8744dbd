"""What happens in a world, drawn from a seed before it begins: who takes part, what is submitted, what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from drr.client.submission import JobOptions
from tests.world.jobs import KEPT, Order, draw_order
from tests.world.network import FAIR, Fate, Weather

TENANTS: Final = ["acme/web", "acme/batch", "globex/mail", "initech/web"]
CAPS: Final = {"initech": 2}
"""Hard caps of organisations."""
WEIGHTS: Final = {"globex": 2}
STORE: Final = "store"
LEADER: Final = "leader"
QUANTUM: Final = 0.2
CONTEST: Final = ("acme", "globex")
"""Organisations that always wait in some scenes, until the faults are long over."""
CONTESTANTS: Final = ("acme/web", "globex/mail")
CONTEST_SECONDS: Final = 0.2
"""Of each of their jobs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls ``who`` at a time: a participant, the store, or whichever dispatcher leads then.

    crash    it dies as by SIGKILL, and begins anew soon
    leave    it is cancelled, as by a host that shuts down, and begins anew soon
    drain    it is a worker that is told to stop, as by SIGTERM, and begins anew soon
    stop     it is stopped, and continued after ``seconds``
    cut      nothing that it sends arrives, for ``seconds``
    jump     its wall clock jumps by ``seconds``
    restart  the store restarts without its last ``lost`` seconds, and is away for ``seconds``
    """

    at: float
    kind: str
    who: str
    seconds: float = 0.0
    lost: float = 0.0


@dataclass
class Scene:
    """The plan of a world. ``slots``: of each worker; ``orders``: of each client, with pauses before them.

    ``fail_at``: the call that goes wrong whatever the weather, counted from 1, or 0; ``fail_how``: in which way.
    """

    seed: str
    dispatchers: int
    slots: Sequence[int]
    orders: Sequence[Sequence[tuple[float, Order]]]
    weather: Weather = FAIR
    outbox: bool = False
    """Whether the first client has one."""
    bulk: Sequence[Order] = ()
    """Submitted at once by a client of its own: see `CONTEST`."""
    faults: Sequence[Fault] = ()
    trouble: float = 0.0
    """Seconds for which faults happen."""
    fail_at: int = 0
    fail_how: Fate = Fate.LOST
    names: list[str] = field(init=False)
    """Of all participants."""

    @property
    def by_label(self) -> dict[int, Order]:
        """All orders."""
        return {order.label: order for order in (*(each for client in self.orders for _, each in client), *self.bulk)}

    def __post_init__(self) -> None:
        self.names = [
            *(f"d{number + 1}" for number in range(self.dispatchers)),
            *(f"w{number + 1}" for number in range(len(self.slots))),
            *(f"c{number + 1}" for number in range(len(self.orders))),
            *(["bulk"] if self.bulk else []),
        ]


TROUBLE: Final = 6.0
FAULT_RATE: Final = 1.0
"""Faults per second."""
CONTESTS: Final = 8
"""Every so many seeds there is one."""
OUTBOXES: Final = 6
"""Every so many seeds there is one, and a restart of the store."""
QUIET_TENANTS: Final = ["initech/web", "umbrella/web"]


def draw_scene(seed: int) -> Scene:
    """Return the plan of a world of many faults."""
    rng = Random(seed)
    if seed % CONTESTS == 0:
        orders = [draw_orders(rng, client, QUIET_TENANTS) for client in (1,)]
        scene = Scene(str(seed), 2, [1, 1, 1], orders, draw_weather(rng), bulk=draw_contest(rng), trouble=TROUBLE)
    else:
        slots = [rng.randint(1, 2) for _ in range(3)]
        orders = [draw_orders(rng, client, TENANTS) for client in (1, 2)]
        scene = Scene(str(seed), 2, slots, orders, draw_weather(rng), trouble=TROUBLE)
        scene.outbox = seed % OUTBOXES == 1
    scene.faults = sorted(draw_faults(rng, scene), key=lambda fault: fault.at)
    return scene


def draw_contest(rng: Random) -> list[Order]:
    """Return jobs of two tenants, with exact estimates, that last until the faults are long over."""
    options = JobOptions(result_ttl=KEPT, estimate=CONTEST_SECONDS)
    return [
        Order(label, tenant, CONTEST_SECONDS, options=options)
        for label, tenant in enumerate(CONTESTANTS * rng.randint(100, 130), 10_000)
    ]


def draw_orders(rng: Random, client: int, tenants: Sequence[str]) -> list[tuple[float, Order]]:
    """Return what one client submits."""
    busy = rng.choice((0.05, 0.1, 0.3))
    number = rng.randint(12, 28)
    return [(rng.random() * 2 * busy, draw_order(rng, label * 10 + client, tenants)) for label in range(number)]


def draw_weather(rng: Random) -> Weather:
    """Return chances of a call to go wrong, of which several are none."""

    def some(most: float) -> float:
        return rng.random() * most if rng.random() < 0.6 else 0.0

    return Weather(
        lost=some(0.04),
        reply_lost=some(0.04),
        late=some(0.02),
        late_at_commit=some(0.06),
        slow=some(0.04),
        killed=some(0.004),
        killed_at_commit=some(0.04),
    )


def draw_faults(rng: Random, scene: Scene) -> list[Fault]:
    """Return what befalls whom: of some kinds several, of others none."""
    chances = [("crash", 1.0), ("stop", 0.6), ("cut", 0.4), ("leave", 0.4), ("drain", 0.4)]
    kinds = [kind for kind, chance in chances if rng.random() < chance]
    faults = []
    at = rng.expovariate(FAULT_RATE)
    while at < scene.trouble:
        faults.append(draw_fault(rng, at, rng.choice(kinds), scene))
        at += rng.expovariate(FAULT_RATE)
    faults += [draw_jump(rng, scene) for _ in range(rng.choice((0, 0, 1, 4)))]
    if scene.outbox or rng.random() < 0.3:
        lost = rng.choice((0.0, rng.random(), 1.0))
        restart_at = 1.0 + rng.random() * (scene.trouble - 1.0)
        faults.append(Fault(restart_at, "restart", STORE, rng.random() * 1.5, lost))
    return faults


def draw_fault(rng: Random, at: float, kind: str, scene: Scene) -> Fault:
    """Return a fault of a kind. A stop or cut may be longer than any lease."""
    workers = [name for name in scene.names if name.startswith("w")]
    who = rng.choice([LEADER, rng.choice(workers), rng.choice(workers), rng.choice(scene.names)])
    if kind == "drain":
        return Fault(at, kind, rng.choice(workers))
    if kind in ("stop", "cut"):
        return Fault(at, kind, who, rng.choice((0.3, 1.0, 5.0)) * (0.5 + rng.random()))
    return Fault(at, kind, who)


def draw_jump(rng: Random, scene: Scene) -> Fault:
    """Return a jump of somebody's clock, by more than any lease."""
    who = rng.choice([LEADER, LEADER, STORE, rng.choice(scene.names)])
    seconds = rng.choice((-1, 1, 1)) * (5.0 + rng.random() * 15.0)
    return Fault(rng.random() * scene.trouble, "jump", who, seconds)
