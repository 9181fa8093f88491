"""The lock of the control plane's state: its holder cannot take it a second time."""

from threading import Thread

import pytest

from scm.state.timed_lock import MeteredLock


def test_second_acquisition_by_the_holder_raises_and_leaves_the_lock_held() -> None:
    """A call that waited for itself would stop the control plane."""
    holds: list[float] = []
    lock = MeteredLock(lambda held_s, _cpu_s: holds.append(held_s))
    passed: list[str] = []

    def enter() -> None:
        with lock:
            passed.append("other")

    other = Thread(target=enter)
    with lock:
        with pytest.raises(RuntimeError, match="takes it again"), lock:
            passed.append("holder")
        other.start()
        other.join(0.05)
        passed.append("end")
    other.join()

    assert ["end", "other"] == passed
    assert 2 == len(holds)
