"""Captures log events while a test runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict


@contextmanager
def logged() -> Iterator[list[EventDict]]:
    """Yield a list that gets the log events of level INFO or higher during the block. The level
    that an earlier test configured has no effect."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with capture_logs() as said:
            yield said
    finally:
        structlog.configure(wrapper_class=before)
