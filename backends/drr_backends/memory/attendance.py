"""Signs of life of dispatchers, each forgotten after a while."""

from __future__ import annotations

from drr.clock import Clock


class Attendance:
    """Counters by dispatcher. The caller holds the store's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}
        """Dispatcher to expiry (monotonic) and counter."""

    def attend(self, dispatcher: str, seconds: float) -> None:
        """See `drr.backend.DispatcherPort.attend`; who has been forgotten is removed in passing."""
        now = self._clock.monotonic()
        counter = (self.of(dispatcher) or 0) + 1
        self._seen = {name: kept for name, kept in self._seen.items() if kept[0] > now}
        self._seen[dispatcher] = (now + seconds, counter)

    def of(self, dispatcher: str) -> int | None:
        """See `drr.backend.ClientPort.attendance`."""
        expiry, counter = self._seen.get(dispatcher, (0.0, 0))
        return counter if expiry > self._clock.monotonic() else None
