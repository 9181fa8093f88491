"""How many failures of a volume are too many."""

from scanner.failure_window import FailureWindow


class TestStrikes:
    def test_first_failure_is_tolerated_and_the_second_is_not(self) -> None:
        """A second failure within 70 minutes fails the volume."""
        strikes = FailureWindow()

        assert not strikes.add(0.0)
        assert strikes.add(70 * 60 - 1.0)

    def test_an_old_failure_is_forgotten(self) -> None:
        """
        After 70 minutes a failure is the first one again, for any number of times.
        """
        strikes = FailureWindow()

        assert not any(strikes.add(70 * 60.0 * number) for number in range(5))

    def test_tolerated_failures_and_window_are_configurable(self) -> None:
        """Three in ten seconds are tolerated and the fourth is not. The window slides."""
        strikes = FailureWindow(tolerated=3, window_s=10)

        seen = [strikes.add(at_s) for at_s in (0.0, 4.0, 8.0, 9.0, 14.0, 15.0, 25.0)]

        assert [False, False, False, True, False, True, False] == seen
