"""A plugin of pytest that records which fields each test has on the wire, and how long it takes.

    SUTURE_SEEN_FIELDS=FILE pytest -p tests.support.wire.recording ...

In one process. Next to FILE are FILE.now, the test that runs, and FILE.times.
"""

import os
from pathlib import Path

import pytest

from tests.support.wire import lost_field

SEEN = Path(os.environ[lost_field.SEEN])


def pytest_configure() -> None:
    """See what passes, in this process and in those that it starts."""
    lost_field.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Say which test runs now."""
    lost_field.now(SEEN).write_text(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long it took."""
    if report.when == "call" and report.passed:
        with lost_field.times(SEEN).open("a") as file:
            file.write(f"{report.nodeid}\t{report.duration:.2f}\n")
