"""The worker: takes dispatched attempts, runs their handlers and reports how they end.

`Worker` is the public face. Behind it, from pure to I/O: `options` (settings, checked together), `tasks`
(handlers by name), `context`; `state` (what is in hand), `pulse` (when to beat) and `takeover` (is the holder of a
name alive), which are synchronous and know no clock; `handlers` (running one attempt), `heart` (the heartbeat's
thread), `stops` (cancelled jobs), `progress` and `shift` (the loops of one run).
"""

from drr.worker.context import Context
from drr.worker.tasks import Task, Tasks
from drr.worker.worker import Worker

__all__ = ["Context", "Task", "Tasks", "Worker"]
