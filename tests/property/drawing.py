"""Passes drawn from a seed, right ones and wrong ones, over what has happened so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from drr.backend import (
    Burial,
    ChangeRecord,
    Commit,
    DeadLetter,
    DeathCause,
    Dispatch,
    Drop,
    DropDelayed,
    EstimateKey,
    Malformed,
    Mature,
    Position,
    Postpone,
    Requeue,
    Revival,
    Settlement,
    Strike,
    Struck,
    Usage,
    UsageKey,
    Window,
    Work,
)
from drr.model import (
    Completion,
    Header,
    JobState,
    Lane,
    Lease,
    NodePolicy,
    NodeState,
    PoolPolicy,
    Quota,
    Settings,
    Share,
    SharedLimit,
)

LANES = [
    Lane("default", ("acme", "web"), 5),
    Lane("default", ("acme", "web"), 0),
    Lane("default", ("acme", "mail"), 5),
    Lane("default", ("globex",), 5),
    Lane("renders", ("acme", "web"), 5),
    Lane("default", ("acme", "web"), 5, ("db", "gpu")),
]
POOLS = ["default", "renders"]
CLIENTS = ["client-a", "client-b"]
WORKERS = ["w1", "w2"]
INCARNATIONS = ["i1", "i2", "i3"]
TOKENS = ["1:a", "2:b"]
SECONDS = [0.0, 0.1, 1 / 3, 2.5, 1e6]
NODES = [("default", ()), ("default", ("acme",)), ("renders", ("acme", "web"))]
LIMITS = {"db": SharedLimit(3), "gpu": SharedLimit(rate=0.5)}
FINAL = [state for state in JobState if state.final]
FAR = 5e9
"""A due time that lies ahead of every clock, in Unix seconds."""
SOME_SETTINGS = Settings(
    limits=LIMITS,
    plans="[plans.x]",
    assigned={"acme": "x"},
    quotas={("acme",): Quota(jobs=12), ("*", "*"): Quota(worker_seconds=12.0)},
    nodes={"default": {("acme",): NodePolicy(2.0, Share(0.5), 7, 1, 3.0)}},
)
OTHER_SETTINGS = Settings(limits=LIMITS, pools={"default": PoolPolicy(reserve=1)})


ENDS = [Completion(JobState.CANCELLED, 0, 1.7e9, 0.0), Completion(JobState.EXPIRED, 1, 1.7e9, 0.0, error="late")]
ESTIMATES = [EstimateKey("default", ("acme", "web"), "work"), EstimateKey("renders", (), "")]
NOW = int(time.time() // 3600)
USAGE = [UsageKey(NOW, ("acme", "web"), "default"), UsageKey(NOW - 30, ("globex",), "renders")]


@dataclass(frozen=True)
class Seen:
    """What the reference shows before a pass is drawn."""

    windows: Sequence[Window]
    delayed: Sequence[Header]
    letters: Sequence[DeadLetter]


@dataclass
class Books:
    """What one must know to draw a pass: who leads, which pass is next, the leases that are live and that were.

    ``windows`` are the lanes as they stand.
    """

    token: str = ""
    passes: int = 0
    live: dict[str, Lease] = field(default_factory=dict)
    ended: list[Lease] = field(default_factory=list)
    next_token: int = 0

    def enter(self, commit: Commit) -> None:
        """Keep the books of a pass that was accepted."""
        self.passes += 1
        endings: list[Settlement | Requeue | Postpone] = [*commit.settlements, *commit.requeues, *commit.postpones]
        self.ended += [self.live.pop(ending.lease.token) for ending in endings]
        self.live.update({dispatch.lease.token: dispatch.lease for dispatch in commit.dispatches})
        self.live.update(commit.charges)

    def draw(self, rng: Random, seen: Seen) -> Commit:
        leases = rng.sample(list(self.live.values()), len(self.live))
        split = sorted(rng.choices(range(4), k=3))
        settled, returned = leases[: split[0]], leases[split[0] : split[1]]
        put_off, kept = leases[split[1] : split[2]], leases[split[2] :]
        requeues = [Requeue(lease, lease.attempt, lease.header.losses + rng.randint(0, 1), 2) for lease in returned]
        delayed = rng.sample(seen.delayed, min(len(seen.delayed), rng.randint(0, 3)))
        matures = [Mature(header) for header in delayed[:2]]
        dead = [letter for letter in seen.letters if letter.header is not None and letter.header.lane in LANES]
        revivals = [
            Revival(letter.number, letter.header)
            for letter in rng.sample(dead, min(len(dead), rng.choice([0, 0, 1])))
            if letter.header is not None
        ]
        heads = {window.lane: list(window.entries) for window in seen.windows}
        strikes = self._draw_strikes(rng, heads)
        for back in (
            *(replace(r.header, attempts=0, losses=0, failures=0, returned=True) for r in revivals),
            *(replace(m.header, returned=True) for m in matures),
            *(
                replace(r.lease.header, attempts=r.attempts, losses=r.losses, failures=r.failures, returned=True)
                for r in requeues
            ),
        ):
            heads[back.lane].insert(0, back)
        removals, dispatches = self._draw_moves(rng, heads)
        return Commit(
            self.token,
            self.passes + 1,
            Position(),
            settlements=[
                Settlement(
                    lease,
                    Completion(rng.choice(FINAL), lease.attempt, 1.7e9, rng.choice(SECONDS), b"v", "e"),
                    rng.choice(["", "poison"]),
                    rng.choice(list(DeathCause)),
                )
                for lease in settled
            ],
            requeues=requeues,
            postpones=[Postpone(lease, FAR + rng.random(), lease.attempt, 1, 2) for lease in put_off],
            matures=matures,
            revivals=revivals,
            drops_delayed=[DropDelayed(header, rng.choice(ENDS)) for header in delayed[2:]],
            strikes=strikes,
            removals=removals,
            dispatches=dispatches,
            charges={
                lease.token: replace(lease, charged=lease.charged + 0.1, worker="w1", cancelled=rng.random() < 0.3)
                for lease in kept[:2]
            },
            stops=[lease.token for lease in kept[:1]],
            estimates={rng.choice(ESTIMATES): rng.choice([None, b"a", b"\0"])},
            changes=[ChangeRecord(1.7e9, "", "me", "what")] if rng.random() < 0.2 else [],
            usage={rng.choice(USAGE): Usage(succeeded=1, failed=2, held=0.3, charged=0.1, refunded=0.2)},
            waiting={rng.choice(LANES).path: Work(rng.randint(-2, 2), rng.choice([-0.1, 0.0, 1.5]))},
            nodes={rng.choice(NODES): rng.choice([None, NodeState(), NodeState(credit=-1 / 3, round=2**50)])},
            settings=rng.choice([None, None, None, SOME_SETTINGS, OTHER_SETTINGS]),
            forget_workers={rng.choice(WORKERS): rng.choice(INCARNATIONS)} if rng.random() < 0.2 else {},
        )

    @staticmethod
    def _draw_strikes(rng: Random, heads: dict[Lane, list[Any]]) -> list[Strike]:
        """Strikes of jobs that wait; what stays of them takes their place in ``heads``."""
        strikes: list[Strike] = []
        for lane in rng.choices(LANES, k=rng.choice([0, 0, 1, 2])):
            jobs = [place for place, entry in enumerate(heads[lane]) if isinstance(entry, Header)]
            if jobs:
                place = rng.choice(jobs)
                header = heads[lane][place]
                strikes.append(Strike(header, rng.choice(ENDS)))
                heads[lane][place] = Struck(lane, header.sequence)
        return strikes

    def _draw_moves(
        self, rng: Random, heads: dict[Lane, list[Any]]
    ) -> tuple[list[Burial | Drop | Struck], list[Dispatch]]:
        """Removals and dispatches of the heads as the rest of the pass leaves them."""
        removals: list[Burial | Drop | Struck] = []
        dispatches: list[Dispatch] = []
        head: Any
        for lane in rng.choices(LANES, k=3):
            if not heads[lane]:
                continue
            head = heads[lane][0]
            if isinstance(head, Malformed):
                removals.append(Burial(lane, head.raw, "not a job"))
            elif isinstance(head, Struck):
                removals.append(head)
            elif rng.random() < 0.2:
                removals.append(Drop(head, rng.choice(ENDS)))
            else:
                continue
            del heads[lane][0]
        for lane in rng.choices(LANES, k=rng.randint(0, 5)):
            if heads[lane] and isinstance(heads[lane][0], Header):
                head = heads[lane].pop(0)
                self.next_token += 1
                lease = Lease(f"t{self.next_token}", head, head.attempts + 1, 1.7e9, rng.choice(SECONDS), "", (0.25,))
                dispatches.append(Dispatch(head, lease))
        return removals, dispatches

    def spoil(self, rng: Random, commit: Commit) -> Commit:
        """Make a commit wrong in one of the ways that there are."""
        ways: list[Callable[[], Commit]] = [
            lambda: replace(commit, token=rng.choice([*TOKENS, "", "3:c"])),
            lambda: replace(commit, pass_number=commit.pass_number + rng.choice([-2, -1, 1])),
            lambda: replace(
                commit, removals=[*commit.removals, Burial(rng.choice(LANES), b"nothing like it", "why")]
            ),
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
