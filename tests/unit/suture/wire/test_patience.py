"""Waiting for a control plane that restarts: for what, how long, and that somebody is told."""

import pytest

from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.channel import RETRY_WAIT_S_MAX, retry_while

STARTING = UnavailableError(Code.SAFE_MODE, "in safe mode no block is allocated")
GONE = UnavailableError(Code.UNAVAILABLE, "nobody listens")


class Scripted:
    """Fails as scripted, then answers."""

    def __init__(self, *failures: SutureError) -> None:
        self.failures = list(failures)
        self.slept_s: list[float] = []
        self.told: list[SutureError] = []

    def __call__(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def asked(self, *codes: Code, timeout_s: float = 60.0, ends_after: int = 1_000) -> str:
        """Ask patiently; whoever asks loses patience after so many waits."""
        return retry_while(
            self,
            codes=codes,
            must_end=lambda: len(self.slept_s) >= ends_after,
            waits=self.told.append,
            timeout_s=timeout_s,
            sleep=self.slept_s.append,
        )


def test_starting_scm_is_retried_until_it_answers() -> None:
    """The SCM is asked more often than three times, at growing intervals of a second at most.
    The caller is notified once.
    """
    scripted = Scripted(*[STARTING] * 20)

    assert "answer" == scripted.asked(Code.SAFE_MODE)
    assert 20 == len(scripted.slept_s)
    assert max(scripted.slept_s) <= RETRY_WAIT_S_MAX
    assert [STARTING] == scripted.told


@pytest.mark.parametrize("error", [GONE, RefusedError(Code.KEY_EXISTS, "k exists")])
def test_error_that_is_not_awaited_is_raised_at_once(error: SutureError) -> None:
    """A wrong address or a refusal is raised at once and not after minutes."""
    scripted = Scripted(error)

    with pytest.raises(type(error)) as caught:
        scripted.asked(Code.SAFE_MODE)

    assert (error, [], []) == (caught.value, scripted.slept_s, scripted.told)


def test_patience_ends_with_its_time() -> None:
    """
    The last failure is raised, with its hint.
    """
    scripted = Scripted(STARTING, STARTING)

    with pytest.raises(UnavailableError) as caught:
        scripted.asked(Code.SAFE_MODE, timeout_s=0.0)

    assert (STARTING, []) == (caught.value, scripted.slept_s)


def test_patience_ends_with_who_asks() -> None:
    """On Ctrl-C no call waits for minutes."""
    scripted = Scripted(*[GONE] * 9)

    with pytest.raises(UnavailableError):
        scripted.asked(Code.SAFE_MODE, Code.UNAVAILABLE, ends_after=2)

    assert 2 == len(scripted.slept_s)


def test_retry_sleeps_with_the_current_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """With simulated time, a real sleep would never end, because simulated time stands still
    meanwhile.
    """
    scripted = Scripted(STARTING)
    monkeypatch.setattr("time.sleep", scripted.slept_s.append)

    answer = retry_while(scripted, codes={Code.SAFE_MODE}, must_end=lambda: False)

    assert ("answer", 1) == (answer, len(scripted.slept_s))
