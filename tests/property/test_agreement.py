"""Two stores are driven with the same operations and must say the same, operation by operation.

The memory adapter is the reference and the Redis adapter, on a real server, must agree with it: results,
errors, and at the end everything that can be seen. What the port leaves to the adapter (cursors, names of
deliveries, the wording of reasons, the order of sets) is taken out before comparing.

Whether the machine would notice a difference is tested too: each planted bug at the end must be caught.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from random import Random
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
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
    Attempt,
    Backend,
    Burial,
    Commit,
    Dispatch,
    Event,
    EventKind,
    Facts,
    Malformed,
    MalformedEvent,
    Peek,
    Position,
    Requeue,
    Settlement,
    Snapshot,
    WorkerRecord,
)
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import BackendError, CommitRefused, InvalidValue, NotLeader, WorkerNameInUse
from drr.model import (
    Completion,
    Header,
    JobSpec,
    JobState,
    Lane,
    Lease,
    NodePolicy,
    NodeState,
    PoolPolicy,
    Settings,
    Share,
    format_job_id,
)
from drr_backends.memory import MemoryBackend, open_memory
from drr_backends.memory.store import Store
from drr_backends.redis import RedisBackend, open_redis

LANES = [
    Lane("default", ("acme", "web"), 5),
    Lane("default", ("acme", "web"), 0),
    Lane("default", ("acme", "mail"), 5),
    Lane("default", ("globex",), 5),
    Lane("renders", ("acme", "web"), 5),
]
POOLS = ["default", "renders"]
CLIENTS = ["client-a", "client-b"]
WORKERS = ["w1", "w2"]
INCARNATIONS = ["i1", "i2", "i3"]
TOKENS = ["1:a", "2:b"]
SECONDS = [0.0, 0.1, 1 / 3, 2.5, 1e6]
NODES = [("default", ()), ("default", ("acme",)), ("renders", ("acme", "web"))]
SOME_SETTINGS = Settings(nodes={"default": {("acme",): NodePolicy(2.0, Share(0.5), 7, 1, 3.0)}})
OTHER_SETTINGS = Settings(pools={"default": PoolPolicy(reserve=1)})

lanes = st.sampled_from(LANES)
small = st.integers(0, 3)
seeds = st.integers(0, 2**32)


# --- what is compared ---------------------------------------------------------------------------------


def comparable(value: Any) -> Any:
    """Return ``value`` without what the port leaves to the adapter."""
    match value:
        case Header():
            # An adapter may return a subclass that remembers more.
            return Header(*(getattr(value, each.name) for each in fields(Header)))
        case Malformed() | MalformedEvent():
            return replace(value, reason="")
        case Attempt():
            return replace(value, delivery="", header=comparable(value.header))
        case Position():
            return "position"
        case Snapshot():
            return {
                "passes": value.passes,
                "leases": {lease.token: comparable(lease) for lease in value.leases},
                "nodes": dict(value.nodes),
                "settings": value.settings,
                "workers": {record.name: record for record in value.workers},
                "lanes": sorted(value.lanes),
            }
        case list() | tuple() if not isinstance(value, Lane | NodeState):
            return [comparable(each) for each in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return type(value), {each.name: comparable(getattr(value, each.name)) for each in fields(value)}
        case _:
            return value


@dataclass
class Side:
    """One of the two stores, and the opaque things that it has said."""

    backend: Backend
    plant_entry: Callable[[Lane, bytes], Awaitable[object]]
    plant_event: Callable[[bytes], Awaitable[object]]
    positions: list[Position] = field(default_factory=lambda: [Position()])
    cursors: dict[str, str] = field(default_factory=dict)


def memory_side(backend: MemoryBackend) -> Side:
    return Side(backend, backend.plant_entry, backend.plant_event)


def redis_side(backend: RedisBackend) -> Side:
    keys, link = backend.keys, backend.link

    async def plant_entry(lane: Lane, raw: bytes) -> None:
        if await link.call("RPUSH", keys.lane(lane), raw) == 1:
            await link.call("SADD", keys.active, str(lane))
            await link.call("XADD", keys.wake, "*", "lane", str(lane), "head", raw)

    async def plant_event(raw: bytes) -> None:
        await link.call("XADD", keys.events, "*", "events", raw)

    return Side(backend, plant_entry, plant_event)


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
        self.live: dict[str, Lease] = {}
        self.ended: list[Lease] = []
        self.next_token = 0
        self.leader = ""
        self.passes = 0
        self.both(lambda side: side.backend.prepare())
        self.elect("", TOKENS[0])

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        try:
            self.compare_all()
        finally:
            for side in (self.reference, self.other):
                self.runner.run(side.backend.close())
            self.runner.close()

    def both(self, operation: Callable[[Side], Awaitable[Any]]) -> Any:
        """Do it on both sides, compare what they say, and return what the reference says (errors included)."""
        expected, found = self.runner.run(self._answer(operation, self.reference)), None
        found = self.runner.run(self._answer(operation, self.other))
        assert comparable(found) == comparable(expected)
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
            )
            for lane, payload, size, kept, told in jobs
        ]
        call = self.calls[client]
        self.submitted[client, call] = specs
        self.ids += self.both(lambda side: side.backend.submit(client, call, specs))
        self.tally("submitted")

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        client, call = data.draw(st.sampled_from(sorted(self.submitted)))
        jobs = self.submitted[client, call]
        self.both(lambda side: side.backend.submit(client, call, jobs))
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
        if self.both(lambda side: side.backend.dead_letters(limit, offset)):
            self.tally("dead letters seen")

    @rule(lane=lanes, offset=small, count=small)
    def peek(self, lane: Lane, offset: int, count: int) -> None:
        self.both(lambda side: side.backend.peek([Peek(lane, offset, count), Peek(LANES[0], 0, 2)]))
        self.both(lambda side: side.backend.lane_lengths(LANES))

    # --- workers

    def record(self, name: str, incarnation: str, slots: int, held: int, draining: bool) -> WorkerRecord:
        pools = dict(zip(POOLS, (slots, 1), strict=False)) if slots else {}
        return WorkerRecord(name, incarnation, pools, tuple(self.live)[:held], draining, "1.0", renewals=9)

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
        tokens = [*self.live, "unknown"]
        events = [
            Event(tokens[number % len(tokens)], kind, WORKERS[0], held, value, str(kind))
            for number, kind in enumerate(kinds)
        ]
        self.both(lambda side: side.backend.report(events))

    # --- hostile bytes

    @rule(lane=lanes, raw=st.sampled_from([b"", b"bad", b"\xff" * 40]))
    def plant_entry(self, lane: Lane, raw: bytes) -> None:
        self.both(lambda side: side.plant_entry(lane, raw))

    @rule(raw=st.sampled_from([b"", b"bad", b"\xc1"]))
    def plant_event(self, raw: bytes) -> None:
        self.both(lambda side: side.plant_event(raw))

    # --- who leads

    @rule(expected=st.sampled_from(["current", "current", "current", "", "1:a"]), token=st.sampled_from(TOKENS))
    def elect(self, expected: str, token: str) -> None:
        current = self.leader if expected == "current" else expected
        if self.both(lambda side: side.backend.elect(current, token)) is True:
            self.leader, self.passes = token, 0
            self.load(token)

    @rule(token=st.sampled_from([*TOKENS, ""]), how=st.sampled_from(["renew", "renew", "resign"]))
    def renew_or_resign(self, token: str, how: str) -> None:
        if how == "renew":
            self.both(lambda side: side.backend.renew(token))
        else:
            self.both(lambda side: side.backend.resign(token))
            self.leader = "" if token == self.leader else self.leader
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

    @precondition(lambda self: self.leader)
    @rule(seed=seeds, back=small)
    def commit(self, seed: int, back: int) -> None:
        self.try_commit(self.draw_commit(Random(seed)), back)

    @precondition(lambda self: self.leader)
    @rule(seed=seeds, turns=st.integers(1, 5))
    def run_a_while(self, seed: int, turns: int) -> None:
        """What clients, dispatcher and worker do all day: submit, start, take, report, end."""
        rng = Random(seed)
        name, incarnation = rng.choice(WORKERS), INCARNATIONS[0]
        for _ in range(turns):
            jobs = [(rng.choice(LANES), b"payload", rng.randint(0, 3), rng.random() < 0.7, True) for _ in range(3)]
            self.submit(rng.choice(CLIENTS), jobs)
            self.worker(name, incarnation, "", rng.randint(0, 3), 2, False, rng.choice(["join", "beat"]))
            self.receive(0, ITEM_LIMIT)
            self.try_commit(self.draw_commit(rng), 0)
            self.read_attempts(name, incarnation, rng.choice(POOLS), rng.randint(1, 3))
            self.report([rng.choice(list(EventKind))], b"value", rng.choice(SECONDS))
            self.look_up(rng.choice(LANES), 1)
            self.replies(rng.choice(CLIENTS), False)

    @precondition(lambda self: self.leader)
    @rule(seed=seeds, back=small)
    def commit_something_wrong(self, seed: int, back: int) -> None:
        rng = Random(seed)
        self.try_commit(self.spoil(rng, self.draw_commit(rng)), back)

    def try_commit(self, commit: Commit, back: int) -> None:
        peeks = [Peek(lane, 0, 2) for lane in LANES]

        def on(side: Side) -> Commit:
            return replace(commit, position=side.positions[max(0, len(side.positions) - 1 - back)])

        said = self.both(lambda side: side.backend.commit(on(side), peeks))
        if not isinstance(said, list):
            self.tally(said.__name__)
            return
        self.tally("committed")
        self.passes += 1
        for kind in ("settlements", "requeues", "burials", "dispatches", "charges"):
            self.happened[kind] += len(getattr(commit, kind))
        ended = [settlement.lease for settlement in commit.settlements]
        ended += [requeue.lease for requeue in commit.requeues]
        self.ended += [self.live.pop(lease.token) for lease in ended]
        self.live.update({dispatch.lease.token: dispatch.lease for dispatch in commit.dispatches})
        self.live.update(commit.charges)

    def draw_commit(self, rng: Random) -> Commit:
        leases = rng.sample(list(self.live.values()), len(self.live))
        split = sorted(rng.choices(range(4), k=2))
        settled, returned, kept = leases[: split[0]], leases[split[0] : split[1]], leases[split[1] :]
        requeues = [Requeue(lease, lease.attempt, lease.header.losses + rng.randint(0, 1)) for lease in returned]
        burials, dispatches = self.draw_moves(rng, requeues)
        return Commit(
            self.leader,
            self.passes + 1,
            Position(),
            settlements=[
                Settlement(
                    lease,
                    Completion(rng.choice(list(JobState)[2:]), lease.attempt, 1.7e9, rng.choice(SECONDS), b"v", "e"),
                    rng.choice(["", "poison"]),
                )
                for lease in settled
            ],
            requeues=requeues,
            burials=burials,
            dispatches=dispatches,
            charges={lease.token: replace(lease, charged=lease.charged + 0.1, worker="w1") for lease in kept[:2]},
            nodes={rng.choice(NODES): rng.choice([None, NodeState(), NodeState(credit=-1 / 3, round=2**50)])},
            settings=rng.choice([None, None, None, SOME_SETTINGS, OTHER_SETTINGS]),
            forget_workers={rng.choice(WORKERS): rng.choice(INCARNATIONS)} if rng.random() < 0.2 else {},
        )

    def draw_moves(self, rng: Random, requeues: Sequence[Requeue]) -> tuple[list[Burial], list[Dispatch]]:
        """Burials and dispatches of the heads as the requeues of the same pass leave them."""
        found = self.runner.run(self.reference.backend.peek([Peek(lane, 0, 5) for lane in LANES]))
        heads: dict[Lane, list[Header | Malformed]] = {window.lane: list(window.entries) for window in found}
        for requeue in requeues:
            header = requeue.lease.header
            heads[header.lane].insert(0, replace(header, attempts=requeue.attempts, losses=requeue.losses))
        burials: list[Burial] = []
        dispatches: list[Dispatch] = []
        head: Any
        for lane in rng.choices(LANES, k=2):
            if heads[lane] and isinstance(heads[lane][0], Malformed):
                head = heads[lane].pop(0)
                burials.append(Burial(lane, head.raw, "not a job"))
        for lane in rng.choices(LANES, k=rng.randint(0, 5)):
            if heads[lane] and isinstance(heads[lane][0], Header):
                head = heads[lane].pop(0)
                self.next_token += 1
                lease = Lease(f"t{self.next_token}", head, head.attempts + 1, 1.7e9, rng.choice(SECONDS), "", (0.25,))
                dispatches.append(Dispatch(head, lease))
        return burials, dispatches

    def spoil(self, rng: Random, commit: Commit) -> Commit:
        """Make a commit wrong in one of the ways that there are."""
        ways: list[Callable[[], Commit]] = [
            lambda: replace(commit, token=rng.choice([*TOKENS, "", "3:c"])),
            lambda: replace(commit, pass_number=commit.pass_number + rng.choice([-2, -1, 1])),
            lambda: replace(commit, burials=[*commit.burials, Burial(rng.choice(LANES), b"nothing like it", "why")]),
        ]
        if self.ended:
            gone = self.ended[-1]
            settlement = Settlement(gone, Completion(JobState.FAILED, 1, 0.0, 0.0))
            ways += [
                lambda: replace(commit, settlements=[*commit.settlements, settlement]),
                lambda: replace(commit, requeues=[*commit.requeues, Requeue(gone, 1, 0)]),
                lambda: replace(commit, charges={**commit.charges, gone.token: gone}),
            ]
        if commit.requeues:
            twice = Settlement(commit.requeues[0].lease, Completion(JobState.FAILED, 1, 0.0, 0.0))
            ways.append(lambda: replace(commit, settlements=[*commit.settlements, twice]))
        if commit.dispatches:
            *most, last = commit.dispatches
            taken = rng.choice(
                [*self.live, *(lease.token for lease in self.ended), most[0].lease.token if most else ""]
            )
            change: Any = rng.choice([{"attempts": 7}, {"losses": 7}, {"nonce": "other"}, {"task": "x"}])
            header = replace(last.header, **change)
            ways += [
                lambda: replace(commit, dispatches=commit.dispatches[::-1]),
                lambda: replace(commit, dispatches=[*most, replace(last, header=header)]),
                lambda: replace(commit, dispatches=[*most, replace(last, lease=replace(last.lease, token=taken))]),
            ]
        return rng.choice(ways)()

    # --- everything

    @rule()
    def compare_all(self) -> None:
        self.both(lambda side: _sorted_status(side))
        self.both(lambda side: side.backend.dead_letters(ITEM_LIMIT))
        self.both(lambda side: side.backend.peek([Peek(lane, 0, 100) for lane in LANES]))
        self.both(lambda side: side.backend.receive(Position(), 0))
        if self.leader:
            self.both(lambda side: side.backend.load(self.leader))
        for name in WORKERS:
            for incarnation in INCARNATIONS:
                for pool in POOLS:
                    self.both(lambda side: side.backend.pending_attempts(name, incarnation, pool))  # noqa: B023


async def _sorted_status(side: Side) -> Any:
    status = await side.backend.read_status()
    return replace(status, workers=tuple(sorted(status.workers, key=lambda record: record.name)))


# --- the tests ----------------------------------------------------------------------------------------


def run(sides: Callable[[], tuple[Side, Side]], examples: int, steps: int, **options: Any) -> Counter[str]:
    """Run the machine over such stores and return what happened, how often."""

    class Machine(Agreement):
        pass

    Machine.sides = staticmethod(sides)
    Machine.happened = Counter()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )
    return Machine.happened


MUST_HAPPEN = [
    *("submitted", "repeated", "replies read", "dead letters seen", "joined", "refused to join", "beat True"),
    *("beat False", "attempts read", "attempts pending", "loaded", "events read", "lanes announced", "committed"),
    *("settlements", "requeues", "burials", "dispatches", "charges", NotLeader.__name__, CommitRefused.__name__),
    *(f"seen {state}" for state in JobState),
]


def fresh_memory(kind: Callable[[Store], MemoryBackend] | None = None) -> Side:
    backend = open_memory("memory://", "agreement", SystemClock())
    return memory_side(backend if kind is None else kind(backend._store))


def test_the_redis_adapter_agrees_with_the_memory_adapter(server: EmbeddedServer) -> None:
    def sides() -> tuple[Side, Side]:
        other = open_redis(server.url, f"agree-{uuid.uuid4().hex}", SystemClock())
        return fresh_memory(), redis_side(other)

    happened = run(sides, examples=60, steps=40)
    print(happened)
    # An agreement about nothing is none.
    assert {what for what in MUST_HAPPEN if happened[what] < 5} == set()
