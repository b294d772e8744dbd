"""One submit as keys and arguments of ``lua/submit.lua``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from drr.model import ANY, UNNAMED_WORK, JobSpec, Lane, TenantPath, job_nonce
from drr_backends.redis.codec import body_of
from drr_backends.redis.keys import Keys

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack
_FIXED = 8


class Batch:
    """The jobs of one call, sorted by lane and tenant."""

    def __init__(self, keys: Keys, jobs: Sequence[JobSpec], nonce: str) -> None:
        self._keys = keys
        self._jobs = jobs
        self._nonce = nonce
        self._lanes: dict[Lane, list[Any]] = {}
        self._work: dict[TenantPath, list[Any]] = {}
        """Jobs, micro-worker-seconds, and index and micros of those with an alias; projects, then organisations."""
        self._aliases: list[list[Any]] = []
        self._dues: list[float] = []
        self._limits: dict[str, None] = {}
        for index, job in enumerate(jobs):
            self._add(index, job)
        for path, work in list(self._work.items()):
            whole = self._work.setdefault(path[:1], [0, 0])
            whole[0] += work[0]
            whole[1] += work[1]
            whole += work[2:]

    def _add(self, index: int, job: JobSpec) -> None:
        lane = self._lanes.get(job.lane)
        if lane is None:
            lane = self._lanes[job.lane] = [str(job.lane)]
            self._limits.update(dict.fromkeys(job.lane.limits))
        lane += (index, body_of(job, job_nonce(self._nonce, index)))
        micros = round((UNNAMED_WORK if job.estimate is None else job.estimate) * 1e6)
        work = self._work.get(job.lane.path)
        if work is None:
            work = self._work[job.lane.path] = [0, 0]
        work[0] += 1
        work[1] += micros
        if job.key or job.name:
            work += (index, micros)
            text = job.key or job.name
            key = self._keys.alias(job.lane.path, text)
            self._aliases.append([index, key, max(1, round(job.key_ttl * 1000)), 1 if job.name else 0, text])
        if job.due_at:
            self._dues += (index, float(job.due_at))

    def keys_after(self, calls: str) -> list[str]:
        """Return the keys of the call; ``calls`` holds the client's remembered calls."""
        keys = self._keys
        found = [keys.sequence, calls, keys.active, keys.wake, keys.admission, keys.depth, keys.due, keys.delayed]
        found += map(keys.lane, self._lanes)
        found += map(keys.bucket, self._work)
        found += dict.fromkeys(alias[1] for alias in self._aliases)
        return found

    def arguments(self) -> list[Any]:
        """Return what follows the call's number and limits."""
        bucket_at = _FIXED + len(self._lanes) + 1
        alias_at = bucket_at + len(self._work)
        places = {key: alias_at + n for n, key in enumerate(dict.fromkeys(alias[1] for alias in self._aliases))}
        tenants = [
            ("/".join(path), _admission_fields(path), bucket_at + number, *work)
            for number, (path, work) in enumerate(self._work.items())
        ]
        aliases = [(index, places[key], ttl, kind, text) for index, key, ttl, kind, text in self._aliases]
        return [
            _pack(list(self._lanes.values())),
            _pack(tenants),
            _pack(tuple(self._limits)) if self._limits else b"",
            _pack(aliases) if aliases else b"",
            _pack(self._dues) if self._dues else b"",
            self._nonce,
        ]

    def ids(self, reply: Sequence[bytes | int]) -> list[str]:
        """Return the jobs' ids, in order, from what the call returned."""
        first = int(reply[0])
        heads = {lane: str(lane) for lane in self._lanes}
        nonces = (job_nonce(self._nonce, index) for index in range(len(self._jobs)))
        ids = [
            f"{heads[job.lane]}:{sequence}~{nonce}"
            for sequence, (job, nonce) in enumerate(zip(self._jobs, nonces, strict=True), first)
        ]
        for index, job_id in zip(reply[1::2], reply[2::2], strict=True):
            assert isinstance(job_id, bytes)
            ids[int(index)] = job_id.decode()
        return ids


def _admission_fields(path: TenantPath) -> str:
    own = "/".join(path)
    others = (ANY,) if len(path) == 1 else (f"{path[0]}/{ANY}", f"{ANY}/{ANY}")
    return "\n".join((own, *others))
