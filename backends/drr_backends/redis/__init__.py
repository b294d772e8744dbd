"""The adapter for Redis >= 7.0 and Valkey >= 8.

client.py, worker.py and dispatcher.py implement the three roles of `drr.backend`; keys.py is the data model,
codec.py and records.py are the bytes, passes.py and ``lua/`` the operations, link.py the connections.
docs/protocol.md describes all of it from outside.
"""

from drr_backends.redis.adapter import RedisBackend, open_redis

__all__ = ["RedisBackend", "open_redis"]
