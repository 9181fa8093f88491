"""Prints the number of completed tasks while a run is in progress."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.sql import SparkSession

from spark_verify.errors import FAILURES
from spark_verify.session import is_connected

Progress = Callable[[str], None]

EVERY_S: Final = 5.0
"""Number of seconds between two printed lines about the same step."""


class StageProgress:
    """Shows the progress of a run: its current step, and the number of completed tasks."""

    def __init__(self, spark: SparkSession, say: Progress) -> None:
        # Spark Connect has neither job descriptions nor a status tracker.
        self._context = None if is_connected(spark) else spark.sparkContext
        self.say, self._step = say, ""

    def begin(self, step: str) -> None:
        """Set the name of the current step, which Spark's web UI, its event log and the printed
        lines show."""
        self._step = step
        if self._context:
            self._context.setJobDescription(step)

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Print the progress every few seconds during the `with` block."""
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _watch(self, ended: threading.Event) -> None:
        tracker = self._context and self._context.statusTracker()
        while not ended.wait(EVERY_S) and tracker:
            with suppress(*FAILURES):  # Spark has ended
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
                if found := [stage for stage in stages if stage]:
                    done, total = (
                        sum(s.numCompletedTasks for s in found),
                        sum(s.numTasks for s in found),
                    )
                    self.say(f"{self._step}: {done:,} of {total:,} tasks")
