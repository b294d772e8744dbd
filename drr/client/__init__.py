"""The client: submits jobs, alone or in bulk, and follows them by handles.

`Client` is the public face. Behind it, from pure to I/O: `submission` (descriptions, checked), `window` (numbers of
calls) and `waiters` (who waits for what), which are synchronous; `bulk` (many jobs in bounded memory), `lookout` (the
loops that wait for jobs), `handle`, and, for clients with an outbox, `journal` (its file), `outbox` (its limits) and
`replay` (what is sent again).
"""

from drr.client.client import Client
from drr.client.handle import Handle
from drr.client.outbox import Outbox, SetAside
from drr.client.submission import Submission

__all__ = ["Client", "Handle", "Outbox", "SetAside", "Submission"]
