"""Waiting until replicas have what was submitted (``WAIT``).

An acknowledgement says that a replica has received the write, not that it has it on disk, nor that this very replica
will be the one that takes over. So it makes a loss by failover unlikely; it is no consensus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from drr.errors import InvalidValue, NotReplicated

MOST_REPLICAS: Final = 16
TIMEOUT: Final = 1.0
"""Seconds to wait for the replicas unless the URL says otherwise."""
LONGEST: Final = 5.0
"""Most seconds to wait; well below what a reply may take at all."""


class Replication(NamedTuple):
    """How many replicas have to acknowledge a submit, 0 for none, and within how many seconds."""

    replicas: int = 0
    timeout: float = TIMEOUT

    @classmethod
    def taken_from(cls, query: dict[str, str]) -> Replication:
        """Take the options ``replicas`` and ``replica_timeout`` out of ``query``. Raises `InvalidValue`."""
        replicas, timeout = query.pop("replicas", None), query.pop("replica_timeout", None)
        if replicas is None:
            if timeout is not None:
                raise InvalidValue(
                    "store URL option replica_timeout", timeout, "it needs replicas=, how many to wait for"
                )
            return cls()
        if not (replicas.isascii() and replicas.isdecimal() and 1 <= int(replicas) <= MOST_REPLICAS):
            raise InvalidValue("store URL option replicas", replicas, f"it must be 1 to {MOST_REPLICAS}")
        try:
            seconds = TIMEOUT if timeout is None else float(timeout)
        except ValueError:
            seconds = math.nan
        if not 0.001 <= seconds <= LONGEST:
            raise InvalidValue("store URL option replica_timeout", timeout, f"it must be 0.001 to {LONGEST:g} s")
        return cls(int(replicas), seconds)

    @property
    def command(self) -> tuple[str | int, ...]:
        """The command that waits for what its connection has written."""
        return ("WAIT", self.replicas, math.ceil(self.timeout * 1000))

    def check(self, job_ids: Sequence[str], reply: Any) -> None:
        """Raise `NotReplicated` if the reply of `command` is that too few have acknowledged, or an error."""
        cause = reply if isinstance(reply, Exception) else None
        acknowledged = 0 if cause is not None else int(reply)
        if acknowledged < self.replicas:
            raise NotReplicated(job_ids, self.replicas, acknowledged, self.timeout) from cause
