"""The dispatcher: one leader among any number of standbys shares the workers' slots among the tenants.

From the inside out: `windows` (read-ahead), `pools` (feeding the core), `backlog` (both in step), `liveness`
(who lives, who holds what), `endings` (what an attempt's end means) and `engine` (facts in, one commit per
pass out) are synchronous and know no clock; so are `election` and `status`. `news`, `leadership` and
`dispatcher` are the thin loops around them; `describe` and `settings` serve people.
`recording` writes what ended into a trace, in a thread of its own.
"""

from drr.dispatcher.counters import Counters
from drr.dispatcher.dispatcher import Dispatcher
from drr.dispatcher.recording import Recorder
from drr.dispatcher.status import NodeStatus, PoolStatus, Status, StoreStatus, decode_status

__all__ = ["Counters", "Dispatcher", "NodeStatus", "PoolStatus", "Recorder", "Status", "StoreStatus", "decode_status"]
