"""How many failures of a volume are too many."""

from scanner.failure_window import Strikes


class TestStrikes:
    def test_one_may_be_an_accident_and_two_are_not(self) -> None:
        """
        One failure is tolerated, the second within 70 minutes fails the volume.
        """
        strikes = Strikes()

        assert not strikes.add(0.0)
        assert strikes.add(70 * 60 - 1.0)

    def test_an_old_failure_is_forgotten(self) -> None:
        """
        After 70 minutes a failure is the first one again, for any number of times.
        """
        strikes = Strikes()

        assert not any(strikes.add(70 * 60.0 * number) for number in range(5))

    def test_what_is_tolerated_can_be_said(self) -> None:
        """
        Three in ten seconds are tolerated, the fourth is not; the window slides.
        """
        strikes = Strikes(tolerated=3, window_s=10)

        seen = [strikes.add(at_s) for at_s in (0.0, 4.0, 8.0, 9.0, 14.0, 15.0, 25.0)]

        assert [False, False, False, True, False, True, False] == seen
