"""The state of a memory store as of some moment, and a restart that goes back to it.

A server that restarts from its log has lost the last second: jobs, leases, accounts, heartbeats, who leads. Numbers
of its streams are never used again, though: a real server makes them of its clock. So a log goes on behind the last
number that it ever gave, and what was kept of it is numbered anew (it was read by nobody who committed that).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import fields
from typing import Any, Final, TypeAlias

from drr_backends.memory.records import Calls, Delivery, Entry, History, Replies
from drr_backends.memory.store import Store
from drr_backends.memory.waiting import Log

Image: TypeAlias = dict[str, Any]

NOT_STATE: Final = frozenset(
    {"clock", "lock", "waiters", "max_jobs", "attendance", "delivery_names", "letter_numbers"}
)
RECORDS: Final = (Calls, Delivery, Entry, History, Replies)


def copied(value: Any) -> Any:
    """Copy what the store changes in place; share what it does not."""
    match value:
        case OrderedDict():
            return OrderedDict((key, copied(each)) for key, each in value.items())
        case dict():
            return {key: copied(each) for key, each in value.items()}
        case list():
            return [copied(each) for each in value]
        case deque():
            return deque((copied(each) for each in value), maxlen=value.maxlen)
        case Log():
            log: Log[Any] = Log()
            log._items, log.last = deque(value._items), value.last
            return log
        case _ if isinstance(value, RECORDS):
            return type(value)(**{field.name: copied(getattr(value, field.name)) for field in fields(value)})
        case _:
            return value


def image(store: Store) -> Image:
    """Return the state of ``store``, to be gone back to later."""
    return {name: copied(value) for name, value in vars(store).items() if name not in NOT_STATE}


def go_back(store: Store, kept: Image) -> None:
    """Make ``store`` what it was when ``kept`` was made."""
    told = max((replies.log.last for replies in store.replies.values()), default=0)
    for name, value in kept.items():
        now = getattr(store, name)
        if isinstance(value, Log):
            value.last = max(value.last, now.last)
        setattr(store, name, value)
    store.replies_forgotten = max(store.replies_forgotten, told)
    for replies in store.replies.values():
        replies.log.last = max(replies.log.last, told)
