"""Passes drawn from a seed, right ones and wrong ones, over what has happened so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from drr.backend import Burial, Commit, Dispatch, Malformed, Position, Requeue, Settlement, Window
from drr.model import (
    Completion,
    Header,
    JobState,
    Lane,
    Lease,
    NodePolicy,
    NodeState,
    PoolPolicy,
    Settings,
    Share,
)

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
        endings: list[Settlement | Requeue] = [*commit.settlements, *commit.requeues]
        self.ended += [self.live.pop(ending.lease.token) for ending in endings]
        self.live.update({dispatch.lease.token: dispatch.lease for dispatch in commit.dispatches})
        self.live.update(commit.charges)

    def draw(self, rng: Random, windows: Sequence[Window]) -> Commit:
        leases = rng.sample(list(self.live.values()), len(self.live))
        split = sorted(rng.choices(range(4), k=2))
        settled, returned, kept = leases[: split[0]], leases[split[0] : split[1]], leases[split[1] :]
        requeues = [Requeue(lease, lease.attempt, lease.header.losses + rng.randint(0, 1)) for lease in returned]
        burials, dispatches = self._draw_moves(rng, windows, requeues)
        return Commit(
            self.token,
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
            removals=burials,
            dispatches=dispatches,
            charges={lease.token: replace(lease, charged=lease.charged + 0.1, worker="w1") for lease in kept[:2]},
            nodes={rng.choice(NODES): rng.choice([None, NodeState(), NodeState(credit=-1 / 3, round=2**50)])},
            settings=rng.choice([None, None, None, SOME_SETTINGS, OTHER_SETTINGS]),
            forget_workers={rng.choice(WORKERS): rng.choice(INCARNATIONS)} if rng.random() < 0.2 else {},
        )

    def _draw_moves(
        self, rng: Random, windows: Sequence[Window], requeues: Sequence[Requeue]
    ) -> tuple[list[Burial], list[Dispatch]]:
        """Burials and dispatches of the heads as the requeues of the same pass leave them."""
        heads = {window.lane: list(window.entries) for window in windows}
        for requeue in requeues:
            header = requeue.lease.header
            heads[header.lane].insert(
                0, replace(header, attempts=requeue.attempts, losses=requeue.losses, returned=True)
            )
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
