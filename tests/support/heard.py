"""Captures log events while a test runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict


@contextmanager
def logged() -> Iterator[list[EventDict]]:
    """Yield the log events from INFO on, whatever level an earlier test configured."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with capture_logs() as said:
            yield said
    finally:
        structlog.configure(wrapper_class=before)
