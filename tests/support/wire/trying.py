"""A plugin of pytest that runs each test once for each field, with that field removed.

    SUTURE_ASKED_TRIALS=FILE    a line for each trial: side:field, a tab, the test
    SUTURE_DONE_TRIALS=FILE     output: the same lines, each with "red" or "green"

Fixtures of a module or the session are kept from one run to the next; otherwise hundreds of trials
would take too long. A test must pass with all fields before and after its trials; otherwise, the
trials have no result. A trial that does not end in time has no result, either. Waits for a
condition are shortened, because without its field a condition often never becomes true.
"""

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

from tests.support import waiting
from tests.support.wire import lost_field
from tests.support.wire.lost_field import ASKED, DONE, LOST

DEADLINE_S: Final = 120.0
AGAIN_S: Final = 1.0
WAIT_S: Final = 8.0
NOTHING: Final = "none"


class Trials:
    """The fields to try, by test."""

    def __init__(self) -> None:
        self._lost = Path(os.environ[LOST])
        self._tried = Path(os.environ[DONE])
        self._of: dict[str, list[str]] = defaultdict(list)
        for line in Path(os.environ[ASKED]).read_text().splitlines():
            key, test = line.split("\t")
            self._of[test].append(key)

    def pytest_runtest_protocol(self, item: pytest.Function, nextitem: Any) -> bool:
        """Try each field; then tear down the fixtures of `item`."""
        trials = self._of[item.nodeid]
        results = [(key, self._is_red(item, key)) for key in (NOTHING, *trials, NOTHING)]
        if results[0][1] is results[-1][1] is False:
            with self._tried.open("a") as file:
                for key, is_red in results[1:-1]:
                    if is_red is None:
                        continue
                    file.write(f"{key}\t{item.nodeid}\t{'red' if is_red else 'green'}\n")
        with self._deadline():
            item.session._setupstate.teardown_exact(nextitem)
        return True

    def _is_red(self, item: pytest.Function, key: str) -> bool | None:
        """Run the test without a field. Return True if it failed, None if it did not end."""
        self._lost.write_text(key)
        beside = pytest.Function.from_parent(item.parent, name="beside", callobj=lambda: None)

        reports: list[pytest.TestReport] = []
        with self._deadline() as late:
            reports = runtestprotocol(item, log=False, nextitem=beside)
        self._lost.write_text(NOTHING)
        return None if late else any(report.failed for report in reports)

    @contextmanager
    def _deadline(self) -> Iterator[list[str]]:
        """Interrupt the body if it runs longer than DEADLINE_S. Yield a list that gets an entry in
        this case."""
        late: list[str] = []

        def end(*_: object) -> None:
            late.append("too late")
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, DEADLINE_S, AGAIN_S)  # one may be swallowed
        try:
            with suppress(TimeoutError):
                yield late
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def pytest_configure(config: pytest.Config) -> None:
    """Install the removal of fields, shorten waits, and register `Trials` to run the tests."""
    lost_field.install()
    waiting.WAIT_S = WAIT_S
    config.pluginmanager.register(Trials())
