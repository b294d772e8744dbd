"""The memory adapter: the port's reference, for embedding in one process, for tests and for simulation.

`store` is the state (made of `records`) and every operation on it as a plain synchronous method; `passes` is
the atomic commit; `waiting` is how a blocked reader is woken, from whichever thread the news comes; `adapter`
makes the port out of these. No method does I/O, and time comes from the injected clock only, so a seeded run
repeats exactly.
"""

from drr_backends.memory.adapter import MemoryBackend, open_memory

__all__ = ["MemoryBackend", "open_memory"]
