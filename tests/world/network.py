"""The network between participants and the store: every call is delayed, and some calls go wrong.

A `Link` is a participant's handle on the store, an implementation of the backend port that passes each call on:
there, into the store, and back, each in a time of its own. So calls over different links overtake each other, and a
caller that is cancelled or killed leaves a request on its way. What may go wrong:

    lost          the request never arrives; the caller sees `StoreUnavailable`
    reply lost    the call is carried out; the caller sees `StoreUnavailable`
    late          the caller sees `StoreUnavailable`; the call is carried out after that, seconds later perhaps
    killed        the caller dies: before the request leaves, when it has been carried out, or as the answer comes

Each link draws from a generator of its own, so what befalls one participant does not depend on the order in which
others are served within one instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from drr.backend import Backend
from drr.errors import StoreUnavailable
from tests.world.life import Life

BLOCKING: Final = frozenset({"receive", "read_attempts", "stops", "replies", "await_resignation"})


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances per call. ``slow``: that one way takes up to ``slowest`` seconds instead of milliseconds."""

    lost: float = 0.0
    reply_lost: float = 0.0
    late: float = 0.0
    late_at_commit: float = 0.0
    latest: float = 3.0
    slow: float = 0.0
    slowest: float = 1.0
    killed: float = 0.0
    killed_at_commit: float = 0.0


FAIR: Final = Weather()


class Fate(Enum):
    """What becomes of a call; see the top of this module."""

    GOOD = ""
    LOST = "lost"
    REPLY_LOST = "reply lost"
    LATE = "late"
    KILLED_BEFORE = "killed before"
    KILLED_AFTER = "killed after"
    KILLED_ANSWERED = "killed on the answer"


KILLING: Final = frozenset({Fate.KILLED_BEFORE, Fate.KILLED_AFTER, Fate.KILLED_ANSWERED})


class Witness(Protocol):
    """Sees what the store has carried out, at the instant when it has."""

    def carried_out(self, life: Life, name: str, args: tuple[Any, ...], result: object) -> None: ...

    def note(self, who: str, *what: object) -> None: ...


@dataclass(slots=True)
class Call:
    """A call under way."""

    life: Life
    name: str
    answer: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    fate: Fate = Fate.GOOD


def finish(coroutine: Coroutine[Any, Any, Any]) -> object:
    """Run a coroutine that waits for nobody, here and now."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value


class Network:
    """All links to one store. ``kill`` is called with a life that dies of a call."""

    def __init__(self, store: Backend, witness: Witness, kill: Callable[[Life], None]) -> None:
        self.store = store
        self.witness = witness
        self.kill = kill
        self.weather = FAIR
        self.fail_at, self.fail_how = 0, Fate.LOST
        """The call that goes wrong whatever the weather, counted from 1, and how."""
        self.failed = ""
        """Which it was."""
        self.down = False
        self.calls = 0
        self.links = 0
        """Open ones, those of the dead left out."""
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, Call] = {}
        self._numbers = 0

    # --- one call

    async def call(
        self, life: Life, rng: Random, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> object:
        """Make a call for ``life``; raises what the store raises, or `StoreUnavailable`."""
        await life.turn()
        if not life.alive:
            raise StoreUnavailable("the process that calls is dead")
        self.calls += 1
        self._numbers += 1
        number = self._numbers
        call = self._under_way[number] = Call(life, name, self._loop.create_future())
        self._send(call, number, rng, name, args, keywords)
        try:
            reply = await call.answer
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        await life.turn()
        if not life.alive:
            raise StoreUnavailable("the process that calls is dead")
        return reply

    def _send(
        self, call: Call, number: int, rng: Random, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        weather = self.weather
        there, back = self._way(rng, weather), self._way(rng, weather)
        if self.calls == self.fail_at:
            self.failed, call.fate = name, self.fail_how
        elif self.down or call.life.cut_off_until > self._loop.time():
            call.fate = Fate.LOST
        elif weather is not FAIR:
            call.fate = self._draw_fate(rng, weather, name == "commit")
        if call.fate is Fate.LOST:
            self._end(call, number)
            self._loop.call_later(there, self._fail, call, "the request was lost")
            return
        if call.fate is Fate.KILLED_BEFORE:
            self._end(call, number)
            self._die(call)
            return
        if call.fate is Fate.LATE:
            self._loop.call_later(there, self._fail, call, "no answer in time")
            there += rng.random() * weather.latest
        call.timer = self._loop.call_later(there, self._arrive, call, number, back, args, keywords)

    @staticmethod
    def _draw_fate(rng: Random, weather: Weather, committing: bool) -> Fate:
        if rng.random() < (weather.killed_at_commit if committing else weather.killed):
            return rng.choice((Fate.KILLED_BEFORE, Fate.KILLED_AFTER, Fate.KILLED_ANSWERED))
        luck = rng.random()
        late = weather.late_at_commit if committing else weather.late
        for chance, fate in ((weather.lost, Fate.LOST), (weather.reply_lost, Fate.REPLY_LOST), (late, Fate.LATE)):
            if luck < chance:
                return fate
            luck -= chance
        return Fate.GOOD

    @staticmethod
    def _way(rng: Random, weather: Weather) -> float:
        if weather.slow and rng.random() < weather.slow:
            return rng.random() * weather.slowest
        return 0.0002 + rng.random() * 0.004

    def _arrive(self, call: Call, number: int, back: float, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        coroutine = getattr(self.store, call.name)(*args, **keywords)
        if call.name in BLOCKING:
            call.task = self._loop.create_task(self._wait(coroutine, call, number, back, args))
            if call.answer.cancelled():
                self._abandon(call)
            return
        try:
            result = finish(coroutine)
        except Exception as error:
            self._reply(call, number, back, error)
        else:
            self.witness.carried_out(call.life, call.name, args, result)
            self._reply(call, number, back, result)

    async def _wait(
        self, coroutine: Coroutine[Any, Any, Any], call: Call, number: int, back: float, args: tuple[Any, ...]
    ) -> None:
        try:
            result = await coroutine
        except Exception as error:
            self._reply(call, number, back, error)
        else:
            self.witness.carried_out(call.life, call.name, args, result)
            self._reply(call, number, back, result)
        finally:
            self._under_way.pop(number, None)

    def _reply(self, call: Call, number: int, back: float, result: object) -> None:
        self._under_way.pop(number, None)
        outcome = type(result).__name__ if isinstance(result, Exception) else "done"
        self.witness.note(call.life.name, call.name, outcome, call.fate.value)
        if call.fate is Fate.KILLED_AFTER:
            self._die(call)
        elif call.fate is Fate.REPLY_LOST:
            self._loop.call_later(back, self._fail, call, "the reply was lost")
        else:
            self._loop.call_later(back, self._deliver, call, result)

    def _deliver(self, call: Call, result: object) -> None:
        if call.fate is Fate.KILLED_ANSWERED:
            self.kill(call.life)
        if call.answer.done():
            return
        if isinstance(result, Exception):
            call.answer.set_exception(result)
        else:
            call.answer.set_result(result)

    def _die(self, call: Call) -> None:
        """The caller dies of its call. It is answered, for it may wait shielded from its own end."""
        self.kill(call.life)
        self._fail(call, "the caller is dead")

    def _end(self, call: Call, number: int) -> None:
        self._under_way.pop(number, None)
        self.witness.note(call.life.name, call.name, call.fate.value)

    @staticmethod
    def _fail(call: Call, why: str) -> None:
        if not call.answer.done():
            call.answer.set_exception(StoreUnavailable(f"{call.name}: {why}"))

    # --- connections

    def _abandon(self, call: Call) -> None:
        """The caller has gone. A request on its way arrives; a read that waits ends when the store notices."""
        if call.task is not None and not call.task.done():
            self._loop.call_later(0.05, call.task.cancel)

    def break_all(self) -> None:
        """Every connection breaks: what has not been carried out never will be, and all callers see that."""
        for call in self._under_way.values():
            if call.timer is not None:
                call.timer.cancel()
            if call.task is not None:
                call.task.cancel()
            self._loop.call_soon(self._fail, call, "the connection broke")
        self._under_way.clear()

    def spare_lives(self) -> None:
        """Let nobody die of a call any more."""
        for call in self._under_way.values():
            if call.fate in KILLING:
                call.fate = Fate.GOOD
        if self.fail_how in KILLING:
            self.fail_at = 0

    @property
    def strays(self) -> int:
        """How many calls are under way that nobody waits for any more."""
        return sum(call.answer.done() for call in self._under_way.values())

    @property
    def waiting(self) -> int:
        """How many calls are under way."""
        return len(self._under_way)


class Link:
    """A participant's handle on the store: the backend port, over the network."""

    def __init__(self, network: Network, life: Life, seed: str) -> None:
        self._network = network
        self._life = life
        self._seed = seed
        self._rng = Random(seed)
        self._siblings = 0
        self._open = True
        network.links += 1

    def sibling(self) -> Link:
        self._siblings += 1
        return Link(self._network, self._life, f"{self._seed}.{self._siblings}")

    async def close(self) -> None:
        if self._open:
            self._open = False
            self._network.links -= 1

    async def _call(self, name: str, *args: Any, **keywords: Any) -> object:
        if not self._open:
            raise StoreUnavailable("this link was closed")
        return await self._network.call(self._life, self._rng, name, args, keywords)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, object]]:
        call = partial(self._call, name)
        setattr(self, name, call)
        return call
