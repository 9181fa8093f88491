"""A clock that does not advance until a test moves it."""


class FakeClock:
    """A wall clock and a monotonic clock. `advance_s` moves both."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_s = 100.0

    def now_ms(self) -> int:
        """Return wall time in milliseconds."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Return monotonic time in seconds."""
        return self._monotonic_s

    def advance_s(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now_ms += int(seconds * 1000)
        self._monotonic_s += seconds

    def set_wall_s(self, seconds: float) -> None:
        """Move only the wall clock by `seconds`, as if an operator had set it."""
        self._now_ms += int(seconds * 1000)
