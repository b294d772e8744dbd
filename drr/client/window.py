"""Numbers of a client's calls, so that a repeated submit is recognised: a synchronous state machine.

The store remembers the last `CALLS_REMEMBERED` calls of a client. A call may be repeated for as long as it is
under way, so no more numbers may be given out past an unfinished one than the store remembers; half of that is
used, to leave room for what the store counts differently.
"""

from __future__ import annotations

from typing import Final

from drr.backend import CALLS_REMEMBERED

CALLS_AHEAD: Final = CALLS_REMEMBERED // 2


class CallWindow:
    """Gives out rising numbers, none of them ``ahead`` or more past the oldest unfinished one."""

    def __init__(self, ahead: int = CALLS_AHEAD) -> None:
        self._ahead = ahead
        self._next = 1
        self._open: dict[int, None] = {}  # in order of numbers, as they are opened in that order

    @property
    def has_room(self) -> bool:
        """Whether another call may begin."""
        return not self._open or self._next - next(iter(self._open)) < self._ahead

    def begin(self) -> int:
        """Return the number of a new call. Needs ``has_room``."""
        assert self.has_room, "a call this far ahead could make the store forget an unfinished one"
        number = self._next
        self._next += 1
        self._open[number] = None
        return number

    def end(self, number: int) -> None:
        """The call is over and will not be repeated."""
        del self._open[number]
