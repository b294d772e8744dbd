"""What must be true of a world whose faults are over and whose work is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from drr.backend import NodeKey, Snapshot
from drr.core.invariants import check as check_core
from drr.dispatcher.engine import Engine
from drr.model import JobState, NodeState
from drr.payload import unpack_result
from drr_backends.memory.store import Store
from tests.world.jobs import Journal, Order
from tests.world.ledger import FRACTIONS, Ledger
from tests.world.network import Network

POISON_AFTER = 3
"""Lost attempts after which a job is given up, as the dispatchers have it by default."""
SLACK = 1e-5
"""Seconds by which two measures of one attempt may differ: accounts are in whole millionths."""


def check_end(ledger: Ledger, journal: Journal, store: Store, orders: Mapping[int, Order]) -> None:
    """Nothing lost, nothing twice, nothing held, and every attempt in the accounts. ``orders``: by label."""
    check_jobs(ledger, store)
    check_states(ledger, orders)
    check_runs(ledger, journal)
    check_results(ledger, journal)
    check_slots(ledger, store)
    check_accounts(ledger, store)


def check_jobs(ledger: Ledger, store: Store) -> None:
    """Every acknowledged job has ended, or was acknowledged within the time that a restart took back."""
    books = ledger.books
    labels: Counter[int] = Counter(books.added.values())
    for label, number in labels.items():
        ledger.expect(number == 1, f"the submit of {label} added {number} jobs")
    done = {label for job_id, label in books.added.items() if job_id in books.completions}
    for label in ledger.promised - done:
        ledger.blame(f"the submit of {label} was in an outbox and is lost")
    for job_id in ledger.acknowledged:
        if job_id not in books.completions:
            ledger.expect(ledger.may_be_lost(job_id), f"{job_id} was acknowledged and is lost")
        else:
            _, kept = store.results.get(job_id, (0.0, None))
            ledger.expect(kept == books.completions[job_id], f"the outcome of {job_id} is {kept}")
    for job_id in books.added:
        ledger.expect(job_id in books.completions, f"{job_id} was taken in and is lost")


def check_states(ledger: Ledger, orders: Mapping[int, Order]) -> None:
    """Every job ended as it was made to end, or was given up after enough losses."""
    for job_id, completion in ledger.books.completions.items():
        order = orders[ledger.books.added[job_id]]
        poisoned = completion.state is JobState.DEAD and completion.attempt >= POISON_AFTER
        ledger.expect(
            completion.state in order.ends(ledger.stopped) or poisoned,
            f"{job_id} ended as {completion.state} at attempt {completion.attempt}; it was {order}",
        )


def check_runs(ledger: Ledger, journal: Journal) -> None:
    """No attempt was run twice, unless the store forgot that it had been started."""
    for (job_id, attempt), runs in journal.by_attempt.items():
        ledger.expect(len(runs) == 1 or ledger.losses, f"attempt {attempt} of {job_id} was run {len(runs)} times")


def check_results(ledger: Ledger, journal: Journal) -> None:
    """What was recorded of an attempt is what its handler did, measured by the handler itself."""
    for token, ended in ledger.books.ended.items():
        completion, started = ended.completion, ended.started
        if completion is None or completion.state is not JobState.SUCCEEDED:
            continue
        runs = journal.by_attempt.get((started.job_id, started.attempt), [])
        done = [run for run in runs if run.ended is not None and not run.failed]
        named = unpack_result(completion.value)
        ledger.expect(named == f"{started.job_id}#{started.attempt}", f"{token} has the result {named!r}")
        if not done:
            ledger.blame(f"attempt {started.attempt} of {started.job_id} succeeded, and no handler has returned")
            continue
        close = any(abs(run.seconds - completion.seconds) < SLACK for run in done)
        ledger.expect(
            close or ledger.clocks_jumped,
            f"{started.job_id} is charged {completion.seconds} s, its handler took {done[0].seconds} s",
        )


def check_slots(ledger: Ledger, store: Store) -> None:
    """Nothing is held by anybody, in any of the places where it could be."""
    for what in (
        "leases",
        "lanes",
        "delayed",
        "deliveries",
        "undelivered",
        "pending",
        "running",
        "stopping",
        "waiting",
    ):
        held = getattr(store, what)
        ledger.expect(not held, f"left in the store's {what}: {list(held)[:3]}")
    ledger.expect(not ledger.books.live, f"leases never ended: {list(ledger.books.live)[:3]}")
    for record in store.workers.values():
        ledger.expect(not record.held, f"{record.name} says that it holds {record.held}")


def check_accounts(ledger: Ledger, store: Store) -> None:
    """The accounts hold each start once, whatever became of it, and no second more or less than the commits said."""
    books = ledger.books
    kept: Counter[tuple[tuple[str, ...], str]] = Counter()
    for accounts in store.usage.values():
        for key, counts in accounts.items():
            for name, value in zip(
                ("succeeded", "failed", "timed_out", "cancelled", "lost", "returned"), counts, strict=False
            ):
                kept[key.path, name] += value
            for name, value in zip(("held", "charged", "refunded"), counts[7:], strict=True):
                kept[key.path, name] += value
    wanted = Counter({key: value for key, value in books.usage.items() if key[1] != "expired"})
    ledger.expect(+kept == +wanted, f"the store's accounts are {+kept}, by its commits {+wanted}")
    ended = sum(value for (_, name), value in kept.items() if name not in FRACTIONS)
    ledger.expect(ended == len(books.ended), f"{ended} attempts in the accounts, {len(books.ended)} were ended")
    starts = sum(books.attempts.values())
    ledger.expect(starts == len(books.ended), f"{starts} starts were accepted, {len(books.ended)} ends")


# --- the leader's memory


def accounts_of(engine: Engine) -> Iterator[tuple[NodeKey, NodeState]]:
    """Yield every account that the engine has in its memory, as it would store it."""
    for name, pool in engine.backlog.pools.items():
        for path, node in pool.scheduler.tree.nodes.items():
            yield (name, path), node.state()


def check_takeover(ledger: Ledger, engine: Engine, snapshot: Snapshot) -> None:
    """A leader begins with the accounts that were last committed."""
    have = dict(accounts_of(engine))
    for key, stored in snapshot.nodes.items():
        mine = have.get(key)
        ledger.expect(
            mine is not None and mine.credit == stored.credit and mine.floor_credit == stored.floor_credit,
            f"{key} was stored with {stored}, and a new leader begins with {mine}",
        )
    ledger.expect(
        set(engine.liveness.holds) == {lease.token for lease in snapshot.leases}, "a new leader holds other leases"
    )


def check_engine(ledger: Ledger, engine: Engine, store: Store) -> None:
    """The leader's memory is what the store holds: leases, accounts, and the core with itself."""
    ledger.expect(set(engine.liveness.holds) == set(store.leases), "the leader's leases are not the store's")
    for name, pool in engine.backlog.pools.items():
        try:
            check_core(pool.scheduler)
        except AssertionError as error:
            ledger.blame(f"pool {name}: {error}")
        ledger.expect(set(pool.scheduler.leases) == set(store.leases), "the core's leases are not the store's")
    have = dict(accounts_of(engine))
    for key, stored in store.nodes.items():
        mine = have.get(key)
        found = engine.backlog.pools.get(key[0])
        if mine is None and found is not None and key[1] in found.scheduler._forgotten:
            continue  # it says nothing any more, and leaves the store with the next commit
        ledger.expect(
            mine is not None and abs(mine.credit - stored.credit) < 1e-9,
            f"the account of {key} is {stored} in the store and {mine} in the leader's memory",
        )


# --- the way out


def check_gone(ledger: Ledger, store: Store, network: Network) -> None:
    """Everybody has left in good order: nothing stays behind, not even a connection."""
    resigned = store.leader.token == "" or network.failed == "resign"  # that is tried once; else it lapses
    ledger.expect(resigned, f"{store.leader.token} still leads though everybody has left")
    ledger.expect(not store.workers, f"workers on record though all have left: {list(store.workers)}")
    ledger.expect(not network.links, f"{network.links} connections were never closed")
    ledger.expect(not network.waiting, f"{network.waiting} calls are still under way")
    ledger.expect(not len(store.waiters), f"{len(store.waiters)} readers still wait")


def describe_stuck(store: Store) -> str:
    """Say what keeps a store from being empty."""
    return (
        f"leases {list(store.leases)[:5]}, lanes {list(map(str, store.lanes))[:5]}, "
        f"delayed {list(store.delayed)[:5]}, requests {len(store.requests)}, "
        f"workers {list(store.workers)}, leader {store.leader.token or 'nobody'}"
    )
