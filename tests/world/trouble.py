"""The faults of a scene, as they happen; and the end of them all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from drr_backends.memory.store import Store
from tests.world.cast import Part, WorkerPart
from tests.world.ledger import Books, Ledger
from tests.world.life import Life
from tests.world.memory import Image, go_back, image
from tests.world.network import FAIR, Network
from tests.world.scene import LEADER, STORE, Fault, Scene


class Trouble:
    """See the top of this module."""

    def __init__(
        self,
        scene: Scene,
        parts: Iterable[Part],
        store: Store,
        store_life: Life,
        network: Network,
        ledger: Ledger,
    ) -> None:
        """``store_life``: the store's clock."""
        self.crashes = 0
        self._scene = scene
        self._parts = {part.name: part for part in parts}
        self._store = store
        self._store_life = store_life
        self._network = network
        self._ledger = ledger
        self._images: dict[Fault, tuple[float, Image, Books]] = {}
        self._befallen: dict[Fault, Part] = {}
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Let the faults happen; return when they are over and everything is as it should be."""
        self._network.weather = self._scene.weather
        for at, fault, moment in sorted(self._moments(), key=lambda moment: moment[0]):
            if at >= self._scene.trouble:
                break
            await asyncio.sleep(max(0.0, at - self._loop.time()))
            self._happen(fault, moment)
        await asyncio.sleep(max(0.0, self._scene.trouble - self._loop.time()))
        self._heal()

    def _moments(self) -> Iterator[tuple[float, Fault, str]]:
        """Yield what is to be done for which fault, and when."""
        for fault in self._scene.faults:
            if fault.kind == "restart":
                yield max(0.0, fault.at - fault.lost), fault, "keep"  # before the restart, also if nothing is lost
                yield fault.at + fault.seconds, fault, "up"
            yield fault.at, fault, fault.kind
            if fault.kind == "stop":
                yield fault.at + fault.seconds, fault, "continue"

    def _happen(self, fault: Fault, moment: str) -> None:
        self._ledger.note(fault.who, moment, round(fault.seconds, 3))
        if fault.who == STORE:
            self._befall_store(fault, moment)
            return
        part = self._find(fault)
        match moment:
            case "crash":
                self.crashes += 1
                part.crash()
            case "leave":
                part.pause()
            case "drain" if isinstance(part, WorkerPart):
                part.drain()
            case "stop":
                self._ledger.stopped = True
                part.stop()
            case "continue":
                part.go_on()
            case "cut" if part.life is not None:
                part.life.cut_off_until = self._loop.time() + fault.seconds
            case "jump":
                self._ledger.clocks_jumped = True
                part.jump(fault.seconds)

    def _find(self, fault: Fault) -> Part:
        """Return whom a fault befalls: the same until it is over."""
        found = self._befallen.get(fault)
        if found is None:
            name = self._ledger.led_by.partition(".")[0] or "d1" if fault.who == LEADER else fault.who
            found = self._befallen[fault] = self._parts[name]
        return found

    def _befall_store(self, fault: Fault, moment: str) -> None:
        match moment:
            case "jump":
                self._ledger.clocks_jumped = True
                self._store_life.wall_offset += fault.seconds
            case "keep":
                self._images[fault] = (self._loop.time(), image(self._store), self._ledger.books.copy())
            case "restart":
                self._network.break_all()
                self._network.down = True
                since, kept, books = self._images.pop(fault)
                go_back(self._store, kept)
                self._ledger.lose(since, books)
            case "up":
                self._network.down = False

    def _heal(self) -> None:
        self._ledger.note("world", "all is well again")
        self._network.weather = FAIR
        self._network.down = False
        self._store_life.wall_offset = 0.0
        for part in self._parts.values():
            part.go_on()
            part.jump(-part.wall_offset)
            if part.life is not None:
                part.life.cut_off_until = float("-inf")
