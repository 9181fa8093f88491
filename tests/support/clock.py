"""A clock that does not advance until a test moves it."""


class FakeClock:
    """Wall and monotonic time, both moved by `advance_s`."""

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
        """Let time pass."""
        self._now_ms += int(seconds * 1000)
        self._monotonic_s += seconds

    def set_wall_s(self, seconds: float) -> None:
        """Set the wall clock alone, as an operator does."""
        self._now_ms += int(seconds * 1000)
