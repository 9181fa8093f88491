"""Prints how many tasks of the running stages are complete, as Spark reports them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_verify.errors import failures
from spark_verify.session import is_connected

Progress = Callable[[str], None]

EVERY_S: Final = 5.0
"""Interval between two lines about the same step."""


class StageProgress:
    """The progress of a run: its current step, and the tasks of Spark's stages."""

    def __init__(self, spark: SparkSession, say: Progress) -> None:
        self._spark, self._say, self._step = spark, say, ""
        self._said_s = time.monotonic()

    def begin(self, step: str) -> None:
        """Describe the next jobs, in Spark's web UI and event log and in printed lines."""
        self._step = step
        if not is_connected(self._spark):  # its protocol has no job descriptions
            self._spark.sparkContext.setJobDescription(step)

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Print progress during the body."""
        if is_connected(self._spark):
            yield from self._printed_by_client(self._spark)
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _printed_by_client(self, client: Any) -> Iterator[None]:
        """Print what the server of Spark Connect reports with its answers, since Spark 4.0."""

        def handle(stages: Iterable[Any] | None, **_: object) -> None:
            if time.monotonic() >= self._said_s + EVERY_S:
                self._print([(s.num_completed_tasks, s.num_tasks) for s in stages or ()])

        is_able = hasattr(client, "registerProgressHandler")
        if is_able:
            client.registerProgressHandler(handle)
        try:
            yield
        finally:
            if is_able:
                client.removeProgressHandler(handle)

    def _watch(self, ended: threading.Event) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        while not ended.wait(EVERY_S):
            with suppress(*failures()):  # Spark has ended
                found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
                self._print([(s.numCompletedTasks, s.numTasks) for s in found if s])

    def _print(self, stages: list[tuple[int, int]]) -> None:
        self._said_s = time.monotonic()
        if stages:
            done, total = map(sum, zip(*stages, strict=True))
            self._say(f"{self._step}: {done:,} of {total:,} tasks")
