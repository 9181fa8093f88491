"""A plugin of pytest that records the message fields with values in each test, and its duration.

    SUTURE_SEEN_FIELDS=FILE pytest -p tests.support.wire.recording ...

Run pytest in one process. FILE.now contains the name of the running test, and FILE.times the
durations.
"""

import os
from pathlib import Path

import pytest

from tests.support.wire import lost_field

SEEN = Path(os.environ[lost_field.SEEN])


def pytest_configure() -> None:
    """Start recording the fields of messages, in this process and its children."""
    lost_field.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Write the name of the running test."""
    lost_field.now(SEEN).write_text(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the duration of a test that passed."""
    if report.when == "call" and report.passed:
        with lost_field.times(SEEN).open("a") as file:
            file.write(f"{report.nodeid}\t{report.duration:.2f}\n")
