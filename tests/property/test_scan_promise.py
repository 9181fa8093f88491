"""Ninety virtual days of a full host: the schedule keeps its promise, and can break it."""

import pytest

from merkle.replica import ContainerId
from scanner.schedule import PERIOD_SHARE, ScanCandidate, Schedule, phase_of
from tests.support.simulation.scan_simulation import DAY_MS, HOUR_MS, SimulatedVolume

WEEK_S = 7 * 86_400
WEEK_MS = WEEK_S * 1000
NOW_MS = 1_790_000_000_000
GB, TB = 10**9, 10**12


class TestNinetyDays:
    """16 TB on each of 12 volumes, in containers of 20 GB, read within seven days."""

    def volume(self, number: int, share: float) -> SimulatedVolume:
        """Return a volume whose clients leave the scan the needed rate and no more.

        Its replicas were read at random times of the week before.
        """
        replicas = {}
        for index in range(16 * TB // (20 * GB)):
            container_id = ContainerId(number * 10_000 + index + 1)
            phase = phase_of(container_id, "some other name")
            at_ms = int(NOW_MS - phase * PERIOD_SHARE * WEEK_MS)
            replicas[container_id] = ScanCandidate(container_id, 20 * GB, at_ms)
        schedule = Schedule(interval_s=WEEK_S, datanode_id=f"datanode-{number}")
        return SimulatedVolume(
            schedule,
            replicas,
            rate_of=lambda needed, _: needed * share,
            now_ms=NOW_MS,
            refresh_ms=6 * HOUR_MS,
        )

    @pytest.mark.parametrize("number", range(12))
    def test_every_byte_is_read_within_the_promise(self, number: int) -> None:
        """At the lowest rate that the pacing may ever choose."""
        volume = self.volume(number, share=1.0)

        volume.run(NOW_MS + 90 * DAY_MS)

        assert volume.worst_age_ms <= WEEK_MS
        assert volume.oldest_age_ms() <= WEEK_MS
        assert volume.read_bytes >= 12 * 16 * TB  # twelve rounds and more

    def test_a_disk_slower_than_needed_breaks_it(self) -> None:
        """The simulation can fail."""
        volume = self.volume(0, share=0.5)

        volume.run(NOW_MS + 30 * DAY_MS)

        assert volume.worst_age_ms > WEEK_MS

    def test_a_day_of_downtime_is_made_up_for(self) -> None:
        """The rate rises with the time that is left; the promise is kept again within a period."""
        volume = self.volume(1, share=1.0)
        volume.run(NOW_MS + 10 * DAY_MS)
        volume.now_ms += DAY_MS
        volume.run(volume.now_ms + 7 * DAY_MS)
        volume.worst_age_ms = 0

        volume.run(NOW_MS + 60 * DAY_MS)

        assert volume.worst_age_ms <= WEEK_MS

    def test_a_new_volume_is_read_once_within_a_period(self) -> None:
        """Nothing has a deadline yet, and all of it is read all the same."""
        volume = self.volume(2, share=1.0)
        volume.replicas = {
            key: ScanCandidate(key, one.used_bytes, 0) for key, one in volume.replicas.items()
        }

        volume.run(NOW_MS + int(PERIOD_SHARE * WEEK_MS) + DAY_MS)

        assert all(one.read_at_ms for one in volume.replicas.values())
