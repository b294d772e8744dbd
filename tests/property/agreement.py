"""Two stores are driven with the same operations and must say the same, operation by operation.

Results are compared, errors too, and at the end everything that can be seen. What the port leaves to the
adapter (cursors, names of deliveries, the wording of reasons, the order of sets) is taken out before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from drr.backend import (
    ITEM_LIMIT,
    STRIKE_LIMIT,
    Commit,
    DeadLetter,
    Event,
    EventKind,
    Facts,
    Peek,
    Position,
    Snapshot,
    WorkerRecord,
)
from drr.errors import BackendError, InvalidValue, WorkerNameInUse
from drr.model import (
    JobSpec,
    JobState,
    Lane,
    RetryPolicy,
    format_job_id,
)
from tests.property.drawing import (
    CLIENTS,
    FAR,
    INCARNATIONS,
    LANES,
    NOW,
    POOLS,
    SECONDS,
    TOKENS,
    WORKERS,
    Books,
    Seen,
)
from tests.property.sides import Side, comparable

lanes = st.sampled_from(LANES)
small = st.integers(0, 3)
seeds = st.integers(0, 2**32)


PAYLOADS = [b"payload", b"payload", b"payload", b"delayed", b"key", b"name"]
"""What these begin and end with says whether a job is delayed, or has a key or name."""
KINDS = (
    *("settlements", "requeues", "removals", "dispatches", "charges", "postpones", "matures", "revivals"),
    *("drops_delayed", "strikes", "stops"),
)


def untimed(letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Dead letters without the time of their burial: each store has a clock of its own."""
    return [replace(letter, buried_at=0.0) for letter in letters]


class Agreement(RuleBasedStateMachine):
    """The machine. ``sides`` makes the two stores: the reference and the one that must agree with it."""

    sides: ClassVar[Callable[[], tuple[Side, Side]]]
    happened: ClassVar[Counter[str]]

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.runner.get_loop()
        self.reference, self.other = type(self).sides()
        self.calls = dict.fromkeys(CLIENTS, 0)
        self.submitted: dict[tuple[str, int], list[JobSpec]] = {}
        self.ids: list[str] = []
        self.books = Books()
        self.both(lambda side: side.backend.prepare())
        self.elect("", TOKENS[0])

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        try:
            self.compare_all()
            self.compare_accounts()
        finally:
            for side in (self.reference, self.other):
                self.runner.run(side.harness.close())
            self.runner.close()

    def both(self, operation: Callable[[Side], Awaitable[Any]]) -> Any:
        """Do it on both sides, compare what they say, and return what the reference says (errors included)."""
        expected, found = self.runner.run(self._answer(operation, self.reference)), None
        found = self.runner.run(self._answer(operation, self.other))
        assert comparable(found) == comparable(expected), (comparable(found), comparable(expected))
        return expected

    @staticmethod
    async def _answer(operation: Callable[[Side], Awaitable[Any]], side: Side) -> Any:
        try:
            return await operation(side)
        except WorkerNameInUse as error:
            return WorkerNameInUse, error.worker, error.incarnation
        except InvalidValue:
            return InvalidValue
        except BackendError as error:
            return type(error)

    def tally(self, what: str) -> None:
        self.happened[what] += 1

    # --- clients

    @rule(
        client=st.sampled_from(CLIENTS),
        jobs=st.lists(st.tuples(lanes, st.binary(max_size=3), small, st.booleans(), st.booleans()), max_size=4),
    )
    def submit(self, client: str, jobs: Sequence[tuple[Lane, bytes, int, bool, bool]]) -> None:
        self.calls[client] += 1
        specs = [
            JobSpec(
                lane,
                "work",
                payload,
                1.7e9 + size,
                None if size == 0 else size / 3,
                None if size < 2 else float(size),
                600.0 if kept else 0.0,
                client if told else "",
                RetryPolicy(size + 1) if size else None,
                1.7e9 if size == 2 else None,
                FAR + size if payload[-1:] in (b"\1", b"d") else 0.0,
                f"k{size}" if payload[:1] in (b"\2", b"k") else "",
                f"n{size}" if payload[:1] in (b"\3", b"n") else "",
            )
            for lane, payload, size, kept, told in jobs
        ]
        call = self.calls[client]
        self.submitted[client, call] = specs
        said = self.both(lambda side: side.backend.submit(client, call, specs))
        if isinstance(said, list):
            self.ids += said
            self.tally("submitted")
        else:
            self.tally(said.__name__)

    @precondition(lambda self: self.submitted)
    @rule(seed=seeds)
    def submit_again(self, seed: int) -> None:
        client, call = Random(seed).choice(sorted(self.submitted))
        jobs = self.submitted[client, call]
        self.both(lambda side: side.backend.submit(client, call, jobs))
        if seed % 3 == 0:
            self.both(lambda side: side.backend.release_calls(client))

        async def remembered(side: Side) -> list[int]:
            return sorted(await side.backend.calls(client))

        self.both(remembered)
        self.tally("repeated")

    @rule(lane=lanes, number=st.integers(0, 30))
    def look_up(self, lane: Lane, number: int) -> None:
        asked = [*self.ids[-ITEM_LIMIT + 2 :], format_job_id(lane, number, "forged"), "nonsense"]
        states = self.both(lambda side: side.backend.look_up(asked))
        self.happened.update(f"seen {status.state}" for status in states if status is not None)

    @rule(client=st.sampled_from(CLIENTS), again=st.booleans())
    def replies(self, client: str, again: bool) -> None:
        async def read(side: Side) -> list[str]:
            ids: list[str] = []
            cursor = "" if again else side.cursors.get(client, "")
            while True:
                cursor, more = await side.backend.replies(client, cursor, 0)
                if not more:
                    side.cursors[client] = cursor
                    return ids
                ids += more

        if self.both(read):
            self.tally("replies read")

    @rule(limit=small, offset=small)
    def dead_letters(self, limit: int, offset: int) -> None:
        async def read(side: Side) -> list[DeadLetter]:
            return untimed(await side.backend.dead_letters(limit=limit, after=offset))

        self.happened["dead letters seen"] += len(self.both(read))

    @rule(lane=lanes, offset=small, count=small)
    def peek(self, lane: Lane, offset: int, count: int) -> None:
        self.both(lambda side: side.backend.peek([Peek(lane, offset, count), Peek(LANES[0], 0, 2)]))
        self.both(lambda side: side.backend.lane_lengths(LANES))

    # --- workers

    def record(self, name: str, incarnation: str, slots: int, held: int, draining: bool) -> WorkerRecord:
        pools = dict(zip(POOLS, (slots, 1), strict=False)) if slots else {}
        return WorkerRecord(name, incarnation, pools, tuple(self.books.live)[:held], draining, "1.0", renewals=9)

    @rule(
        name=st.sampled_from(WORKERS),
        incarnation=st.sampled_from(INCARNATIONS),
        replacing=st.sampled_from(["", *INCARNATIONS]),
        slots=small,
        held=small,
        draining=st.booleans(),
        how=st.sampled_from(["join", "beat", "beat", "leave"]),
    )
    def worker(
        self, name: str, incarnation: str, replacing: str, slots: int, held: int, draining: bool, how: str
    ) -> None:
        record = self.record(name, incarnation, slots, held, draining)
        if how == "join":
            said = self.both(lambda side: side.backend.join(record, replacing))
            self.tally("joined" if said is None else "refused to join")
        elif how == "beat":
            self.tally(f"beat {self.both(lambda side: side.backend.heartbeat(record))}")
        else:
            self.both(lambda side: side.backend.leave(name, incarnation))
        self.both(lambda side: side.backend.worker_record(name))

    @rule(
        name=st.sampled_from(WORKERS),
        incarnation=st.sampled_from(INCARNATIONS),
        pool=st.sampled_from(POOLS),
        count=st.integers(0, 3),
    )
    def read_attempts(self, name: str, incarnation: str, pool: str, count: int) -> None:
        read = self.both(lambda side: side.backend.read_attempts(name, incarnation, pool, count, 0))
        if read is not InvalidValue:
            self.happened["attempts read"] += len(read)
        pending = self.both(lambda side: side.backend.pending_attempts(name, incarnation, pool))
        self.happened["attempts pending"] += len(pending)

    @rule(
        kinds=st.lists(st.sampled_from(EventKind), max_size=3),
        value=st.binary(max_size=3),
        held=st.sampled_from(SECONDS),
    )
    def report(self, kinds: Sequence[EventKind], value: bytes, held: float) -> None:
        tokens = [*self.books.live, "unknown"]
        events = [
            Event(tokens[number % len(tokens)], kind, WORKERS[0], held, value, str(kind))
            for number, kind in enumerate(kinds)
        ]
        self.both(lambda side: side.backend.report(events))

    # --- hostile bytes

    @rule(lane=lanes, raw=st.sampled_from([b"", b"bad", b"\xff" * 40]))
    def plant_entry(self, lane: Lane, raw: bytes) -> None:
        self.both(lambda side: side.harness.plant_entry(lane, raw))

    @rule(raw=st.sampled_from([b"", b"bad", b"\xc1"]))
    def plant_event(self, raw: bytes) -> None:
        self.both(lambda side: side.harness.plant_event(raw))

    # --- who leads

    @rule(expected=st.sampled_from(["current", "current", "current", "", "1:a"]), token=st.sampled_from(TOKENS))
    def elect(self, expected: str, token: str) -> None:
        current = self.books.token if expected == "current" else expected
        if self.both(lambda side: side.backend.elect(current, token)) is True:
            self.books.token, self.books.passes = token, 0
            self.load(token)

    @rule(token=st.sampled_from([*TOKENS, ""]), how=st.sampled_from(["renew", "renew", "resign"]))
    def renew_or_resign(self, token: str, how: str) -> None:
        if how == "renew":
            self.both(lambda side: side.backend.renew(token))
        else:
            self.both(lambda side: side.backend.resign(token))
            self.books.token = "" if token == self.books.token else self.books.token
            self.both(lambda side: side.backend.await_resignation(0))

    @rule(token=st.sampled_from([*TOKENS, ""]))
    def load(self, token: str) -> None:
        async def load(side: Side) -> Snapshot:
            snapshot = await side.backend.load(token)
            side.positions.append(snapshot.position)
            return snapshot

        if isinstance(self.both(load), Snapshot):
            self.tally("loaded")
        else:
            self.reference.positions.append(Position())
            self.other.positions.append(Position())

    @rule(token=st.sampled_from([*TOKENS, ""]), blob=st.binary(max_size=3))
    def status(self, token: str, blob: bytes) -> None:
        self.both(lambda side: side.backend.write_status(token, blob))
        self.both(lambda side: _sorted_status(side))

    # --- news and passes

    @rule(back=small, limit=st.sampled_from([1, 2, 5, ITEM_LIMIT]))
    def receive(self, back: int, limit: int) -> None:
        async def receive(side: Side) -> Facts:
            # All calls on both sides go on from the same one of the last positions.
            start = side.positions[max(0, len(side.positions) - 1 - back)]
            facts = await side.backend.receive(start, 0, limit)
            side.positions.append(facts.position)
            return facts

        facts = self.both(receive)
        self.happened["events read"] += len(facts.events)
        self.happened["lanes announced"] += len(facts.lanes)

    # What a pass holds is drawn from a seed, not piece by piece: passes are big, and examples must stay long.

    @precondition(lambda self: self.books.token)
    @rule(seed=seeds, back=small)
    def commit(self, seed: int, back: int) -> None:
        self.try_commit(self.books.draw(Random(seed), self.seen()), back)

    @precondition(lambda self: self.books.token)
    @rule(seed=seeds, turns=st.integers(1, 5))
    def run_a_while(self, seed: int, turns: int) -> None:
        """What clients, dispatcher and worker do all day: submit, start, take, report, end."""
        rng = Random(seed)
        name, incarnation = rng.choice(WORKERS), rng.choice(INCARNATIONS[:2])
        for _ in range(turns):
            jobs = [
                (rng.choice(LANES), rng.choice(PAYLOADS), rng.randint(0, 3), rng.random() < 0.7, True)
                for _ in range(3)
            ]
            self.submit(rng.choice(CLIENTS), jobs)
            self.worker(name, incarnation, "", rng.randint(0, 3), 2, False, rng.choice(["join", "beat"]))
            self.receive(0, ITEM_LIMIT)
            self.try_commit(self.books.draw(rng, self.seen()), 0)
            self.read_attempts(name, incarnation, rng.choice(POOLS), rng.randint(1, 3))
            self.report([rng.choice(list(EventKind))], b"value", rng.choice(SECONDS))
            self.look_up(rng.choice(LANES), 1)
            self.replies(rng.choice(CLIENTS), False)
            if rng.random() < 0.3:
                self.submit_again(rng.randrange(2**32))
                self.plant_entry(rng.choice(LANES), b"bad")
                self.commit_something_wrong(rng.randrange(2**32), 0)

    @precondition(lambda self: self.books.token)
    @rule(seed=seeds, back=small)
    def commit_something_wrong(self, seed: int, back: int) -> None:
        rng = Random(seed)
        self.try_commit(self.books.spoil(rng, self.books.draw(rng, self.seen())), back)

    def seen(self) -> Seen:
        async def read() -> Seen:
            backend = self.reference.backend
            windows = await backend.peek([Peek(lane, 0, 5) for lane in LANES])
            return Seen(windows, (await backend.due(1e11)).jobs, await backend.dead_letters(limit=20))

        return self.runner.run(read())

    def try_commit(self, commit: Commit, back: int) -> None:
        peeks = [Peek(lane, 0, 2) for lane in LANES]

        def on(side: Side) -> Commit:
            return replace(commit, position=side.positions[max(0, len(side.positions) - 1 - back)])

        said = self.both(lambda side: side.backend.commit(on(side), peeks))
        if not isinstance(said, list):
            self.tally(said.__name__)
            return
        self.tally("committed")
        for kind in KINDS:
            self.happened[kind] += len(getattr(commit, kind))
        self.books.enter(commit)

    # --- everything

    @rule()
    def compare_accounts(self) -> None:
        self.both(lambda side: side.backend.due(1e11))
        self.both(lambda side: side.backend.waiting([lane.path for lane in LANES] + [("acme",)]))
        self.both(lambda side: side.backend.settings())
        self.both(lambda side: side.backend.changes())
        self.both(lambda side: _stopping(side))
        self.both(lambda side: side.backend.locate(self.ids[-STRIKE_LIMIT:]))
        self.both(lambda side: side.backend.progress(self.ids[-ITEM_LIMIT:]))
        for organisation in ("acme", "globex"):
            self.both(lambda side: side.backend.usage(organisation, NOW - 48, NOW + 1))  # noqa: B023
            for state in JobState:
                self.both(lambda side: _listed(side, organisation, state))  # noqa: B023

    @rule()
    def compare_all(self) -> None:
        self.both(lambda side: _sorted_status(side))

        async def read(side: Side) -> list[DeadLetter]:
            return untimed(await side.backend.dead_letters(limit=ITEM_LIMIT))

        self.happened["dead letters seen"] += len(self.both(read))
        self.both(lambda side: side.backend.peek([Peek(lane, 0, 100) for lane in LANES]))
        self.both(lambda side: side.backend.receive(Position(), 0))
        if self.books.token:
            self.both(lambda side: side.backend.load(self.books.token))
            self.both(lambda side: _audited(side, self.books.token))
        for name in WORKERS:
            for incarnation in INCARNATIONS:
                for pool in POOLS:
                    self.both(lambda side: side.backend.pending_attempts(name, incarnation, pool))  # noqa: B023


async def _audited(side: Side, token: str) -> Any:
    """What an audit says in all, which must find nothing wrong with a store that only drr has written to."""
    tokens: list[str] = []
    lanes: list[Lane] = []
    delayed: Counter[Any] = Counter()
    waiting: dict[Any, Any] = {}
    cursor = ""
    while True:
        page = await side.backend.audit(token, POOLS, cursor, 3)
        assert not page.repaired
        assert not page.bare
        tokens += page.tokens
        lanes += page.lanes
        delayed.update({path: work.jobs for path, work in page.delayed.items()})
        waiting |= page.waiting
        cursor = page.cursor
        if not cursor:
            return sorted(set(tokens)), sorted(set(lanes)), delayed, waiting


async def _stopping(side: Side) -> list[str]:
    return sorted((await side.backend.stops("", 0))[1])


async def _listed(side: Side, organisation: str, state: JobState) -> list[Any]:
    found: list[Any] = []
    cursor = ""
    while True:
        page = await side.backend.list_jobs((organisation,), state, ITEM_LIMIT, cursor)
        found += page.jobs
        cursor = page.cursor
        if not cursor:
            return sorted(found, key=str)


async def _sorted_status(side: Side) -> Any:
    status = await side.backend.read_status()
    return replace(status, workers=tuple(sorted(status.workers, key=lambda record: record.name)))


def run(sides: Callable[[], tuple[Side, Side]], **options: Any) -> Counter[str]:
    """Run the machine over such stores, with these settings, and return what happened, how often."""

    class Machine(Agreement):
        pass

    Machine.sides = staticmethod(sides)
    Machine.happened = Counter()
    checks = settings(deadline=None, suppress_health_check=list(HealthCheck), **options)
    run_state_machine_as_test(Machine, settings=checks)
    return Machine.happened
