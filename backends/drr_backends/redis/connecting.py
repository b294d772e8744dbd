"""What differs between versions of redis-py when a connection is made."""

from __future__ import annotations

import inspect
from typing import Any

from redis.asyncio.connection import AbstractConnection


def anonymous() -> dict[str, Any]:
    """Return the options by which a connection does not tell the server which library it is.

    CLIENT SETINFO fails under an ACL of Redis 7.0; what turns it off is spelt differently by version.
    """
    known = inspect.signature(AbstractConnection.__init__).parameters
    return {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}
