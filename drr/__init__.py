"""Fair dispatch of background jobs in multi-tenant services.

Where things are, from the outside in; a layer knows only those below it::

    drr.cli                                  the command line; `drr.demo` beside it
    drr.dispatcher  drr.worker  drr.client   the three roles
    drr.backend  drr.clock  drr.wire         the port to a store, time, bytes
    drr.core                                 the scheduler: pure, no I/O, no clock
    drr.model  drr.errors                    values and exceptions

Adapters of the port are in `drr_backends` and found by URL scheme; nothing here imports them.
"""

from importlib.metadata import PackageNotFoundError, version

from drr import errors
from drr.client import Client, Handle, Outbox, Submission
from drr.dispatcher import Dispatcher
from drr.errors import RetryAfter
from drr.model import NodePolicy, PoolPolicy, Quota, RetryPolicy, Share, SharedLimit
from drr.worker import Context, Task, Tasks, Worker

try:
    __version__ = version("drr-dispatcher")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0"

__all__ = [
    "Client",
    "Context",
    "Dispatcher",
    "Handle",
    "NodePolicy",
    "Outbox",
    "PoolPolicy",
    "Quota",
    "RetryAfter",
    "RetryPolicy",
    "Share",
    "SharedLimit",
    "Submission",
    "Task",
    "Tasks",
    "Worker",
    "__version__",
    "errors",
]
