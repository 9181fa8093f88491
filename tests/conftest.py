"""Options of the whole test suite."""

import signal

import pytest

# A shell lets what it runs in the background ignore Ctrl-C, and processes pass that on.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register what `pytest` can be told here."""
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write what the code says into tests/golden; commit only what you can explain",
    )
