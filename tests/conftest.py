"""Options of the whole test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register what `pytest` can be told here."""
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write what the code says into tests/golden; commit only what you can explain",
    )
