"""A world: the whole of drr over a simulated store and network, in virtual time, from one seed.

Two dispatchers, a few workers and clients, all of them the product's own classes, talk over `tests.world.network`
to one memory store. While the faults last calls go astray and participants die and come back. Then all is well again,
and what was submitted has to come to its end; `tests.world.invariants` says what must be true then, and `Ledger` what
must be true of every call on the way.

The same seed makes the same world, call by call. `python -m tests.world SEED` runs one, and shows its history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio

from drr.backend import Snapshot
from drr.dispatcher import leadership
from drr.dispatcher.engine import Engine
from drr.model import NodePolicy, TenantPath
from drr_backends.memory import MemoryBackend
from drr_backends.memory.store import Store
from tests.world.cast import LEASE, BulkPart, ClientPart, DispatcherPart, Part, Stage, WorkerPart
from tests.world.fairness import Contest
from tests.world.invariants import check_end, check_engine, check_gone, check_takeover, describe_stuck
from tests.world.jobs import Journal
from tests.world.ledger import Ledger
from tests.world.life import Life
from tests.world.network import Network
from tests.world.scene import CAPS, STORE, WEIGHTS, Scene, draw_scene
from tests.world.trouble import Trouble
from tests.world.virtual import run_virtual

RECOVERY: Final = 60.0
"""Seconds after which everything has come to its end, or never will."""
QUIET: Final = 1.5
"""Seconds for which nothing happens before that is believed: more than a heartbeat."""


@dataclass
class Report:
    """What came of one world."""

    seed: str
    wrong: list[str] = field(default_factory=list)
    history: list[tuple[object, ...]] = field(default_factory=list)
    calls: int = 0
    failed: str = ""
    """The call that was to fail, if there was one."""
    acknowledged: int = 0
    attempts: int = 0
    lost_attempts: int = 0
    """Those that were lost or handed back."""
    takeovers: int = 0
    crashes: int = 0
    promised: int = 0
    """Submits through an outbox."""
    horizon: float = 0.0
    """How long two siblings were compared, in bounds of theirs."""
    drift: float = 0.0
    """By how much they drifted apart, as a part of the bound."""
    seconds: float = 0.0

    def __str__(self) -> str:
        return "\n".join(
            [f"seed {self.seed}:", *(f"  {line}" for line in self.wrong[:10]), f"  replay: {replay(self.seed)}"]
        )


def replay(seed: str) -> str:
    """Return the command that runs a world again and shows its history."""
    return f".venv/bin/python -m tests.world {seed}"


class World:
    """One run of a scene. Make it inside the loop that runs it."""

    def __init__(self, scene: Scene, folder: str = "") -> None:
        """``folder``: where files may be written."""
        self.scene = scene
        self.report = Report(scene.seed)
        loop = asyncio.get_running_loop()
        self.store_life = Life(STORE, 0.0)
        self.store = Store(self.store_life)
        self.ledger = Ledger(loop.time, CAPS, LEASE)
        self.network = Network(MemoryBackend(self.store, self.store_life), self.ledger, self._kill)
        self.network.fail_at, self.network.fail_how = scene.fail_at, scene.fail_how
        self.journal = Journal()
        policies: dict[str | TenantPath, NodePolicy] = {name: NodePolicy(weight=of) for name, of in WEIGHTS.items()}
        policies.update((name, NodePolicy(hard_cap=cap)) for name, cap in CAPS.items())
        stage = self.stage = Stage(scene.seed, self.network, self.ledger, self.journal, policies)
        self.dispatchers = [DispatcherPart(stage, f"d{number + 1}") for number in range(scene.dispatchers)]
        self.workers = [WorkerPart(stage, f"w{number}", slots) for number, slots in enumerate(scene.slots, 1)]
        outboxes = [Path(folder) / "outbox"] if scene.outbox else []
        self.clients = [
            ClientPart(stage, f"c{number}", orders, outbox)
            for number, (orders, outbox) in enumerate(zip_longest(scene.orders, outboxes), 1)
        ]
        bulk = [BulkPart(stage, scene.bulk)] if scene.bulk else []
        self.submitters: list[ClientPart | BulkPart] = [*self.clients, *bulk]
        self.parts: list[Part] = [*self.dispatchers, *self.workers, *self.submitters]
        since, most_left = scene.trouble + LEASE + 4.0, sum(scene.slots) * (LEASE + 1.0)
        self.contest = Contest(self.ledger, self.store, since, most_left)
        if scene.bulk:
            self.ledger.watchers.append(self.contest.watch)
        self.engines: dict[str, Engine] = {}
        """Of all leaders that have loaded, by token."""

    def _kill(self, life: Life) -> None:
        if life.alive:
            self.report.crashes += 1
            self.ledger.note(life.name, "dies of a call")
            life.kill()

    # --- the course of things

    async def run(self) -> Report:
        """Live through it; what is wrong is in the report."""
        async with anyio.create_task_group() as group:
            for part in self.parts:
                group.start_soon(part.play)
            trouble = Trouble(self.scene, self.parts, self.store, self.store_life, self.network, self.ledger)
            await trouble.run()
            self.report.crashes += trouble.crashes
            if await self._quiet():
                self._check()
            self.network.spare_lives()  # who dies on the way out cannot leave in good order
            for part in (*self.submitters, *self.workers, *self.dispatchers):
                part.leave()
                await asyncio.sleep(0.1)
            with anyio.move_on_after(30.0) as late:
                for part in self.parts:
                    await part.over.wait()
            if late.cancelled_caught:
                self.ledger.blame("somebody does not leave")
                group.cancel_scope.cancel()
        await asyncio.sleep(5.0)
        if not self.ledger.wrong:
            check_gone(self.ledger, self.store, self.network)
        return self._make_report()

    async def _quiet(self) -> bool:
        """Wait until everything has come to its end; return whether nothing is wrong so far."""
        loop = asyncio.get_running_loop()
        until, quiet_since = loop.time() + RECOVERY, loop.time()
        while not self.ledger.wrong and not self.stage.failures:
            if self._is_busy():
                quiet_since = loop.time()
            elif loop.time() - quiet_since >= QUIET:
                return True
            if loop.time() > until:
                self.ledger.blame(f"not everything ended: {describe_stuck(self.store)}")
                break
            await asyncio.sleep(0.1)
        return False

    def _is_busy(self) -> bool:
        store = self.store
        work = store.leases or store.lanes or store.delayed or len(store.requests) or self.network.strays
        ordering = any(client.busy for client in self.clients)
        return bool(work) or ordering or not self._is_led() or not all(map(self._is_back, self.workers))

    def _is_led(self) -> bool:
        lives = [part.life for part in self.dispatchers if part.life is not None and part.life.alive]
        return bool(self.store.leader.token) and any(life.name == self.ledger.led_by for life in lives)

    def _is_back(self, part: WorkerPart) -> bool:
        record = self.store.workers.get(part.name)
        return record is not None and part.hands is not None and part.hands.incarnation == record.incarnation

    def _check(self) -> None:
        if self.ledger.books.settings:
            self.contest.check()
        check_end(self.ledger, self.journal, self.store, self.scene.by_label)
        for part in self.workers:
            idle = part.hands is not None and part.hands.idle
            self.ledger.expect(idle and self._is_back(part), f"{part.name} is not idle, or not on record")
            for life, peak in self.journal.peaks.items():
                many = peak > part.slots and life.name.startswith(f"{part.name}.")
                self.ledger.expect(not many, f"{life.name} ran {peak} jobs at once in {part.slots} slots")
        for counters in {id(engine.counters): engine.counters for engine in self.engines.values()}.values():
            # A store that has gone back does contradict its leader's memory, until either of them sees it.
            sound = not counters.mismatched or self.ledger.losses
            self.ledger.expect(sound, f"reconciliation found something: {counters}")
        engine = self.engines.get(self.store.leader.token)
        if engine is None:
            self.ledger.blame("nobody leads")
        else:
            check_engine(self.ledger, engine, self.store)

    def _make_report(self) -> Report:
        report, ledger = self.report, self.ledger
        report.wrong = [*ledger.wrong, *self.stage.failures]
        report.history = ledger.history
        report.calls = self.network.calls
        report.failed = self.network.failed
        report.acknowledged = len(ledger.acknowledged)
        report.attempts = len(self.journal.runs)
        report.lost_attempts = sum(
            usage for (_, name), usage in ledger.books.usage.items() if name in ("lost", "returned")
        )
        report.takeovers = ledger.takeovers
        report.promised = len(ledger.promised)
        report.horizon = self.contest.horizon / self.contest.bound
        report.drift = self.contest.drift / self.contest.bound
        report.seconds = asyncio.get_running_loop().time()
        return report

    # --- engines

    def made(self, engine: Engine, snapshot: Snapshot) -> None:
        """A leader has loaded."""
        self.engines[engine.token] = engine
        check_takeover(self.ledger, engine, snapshot)


@contextmanager
def watched_engines(world: World) -> Iterator[None]:
    """Let the world see every engine that a leader makes."""

    class Watched(Engine):
        def __init__(self, snapshot: Snapshot, *args: Any, **keywords: Any) -> None:
            super().__init__(snapshot, *args, **keywords)
            world.made(self, snapshot)

    name = "Engine"
    setattr(leadership, name, Watched)
    try:
        yield
    finally:
        setattr(leadership, name, Engine)


def run_world(seed: int) -> Report:
    """Run the world of ``seed``."""
    return run_scene(draw_scene(seed))


def run_scene(scene: Scene) -> Report:
    """Run the world of a scene."""

    async def main() -> Report:
        with TemporaryDirectory() if scene.outbox else nullcontext("") as folder:
            world = World(scene, folder)
            with watched_engines(world):
                return await world.run()

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what goes wrong on purpose is logged as anything else
    try:
        return run_virtual(main())
    finally:
        logging.disable(before)
