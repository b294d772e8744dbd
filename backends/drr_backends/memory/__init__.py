"""The memory adapter: the port's reference, for embedding in one process, for tests and for simulation.

`store` is the state (made of `records`) and the operations on it as plain synchronous methods; `admission` is how
jobs come in, `listing` where they stand, `checks` and `passes` the atomic commit; `waiting` is how a blocked reader
is woken, from whichever thread the news comes; `adapter` makes the port out of these, `opening` finds it by URL. No
method does I/O, and time comes from the injected clock only, so a seeded run repeats exactly.
"""

from drr_backends.memory.adapter import MemoryBackend
from drr_backends.memory.opening import open_memory

__all__ = ["MemoryBackend", "open_memory"]
