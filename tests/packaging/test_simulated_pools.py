"""A pool of the simulation is as Python's own in what product code relies on."""

from concurrent.futures import Future
from random import Random

import pytest

from tools.simulation.simulated_os.fibers import Scheduler
from tools.simulation.simulated_os.primitives import Executor


@pytest.mark.parametrize("seed", range(30))
def test_a_job_may_wait_for_one_that_was_asked_for_before(seed: int) -> None:
    """
    Two threads take jobs in the order of asking, so of those that wait one never does.
    """
    scheduler = Scheduler(Random(seed))
    pool = Executor(scheduler, max_workers=2)
    asked: list[Future[None]] = []

    def job(number: int) -> None:
        scheduler.point("begun")
        scheduler.block(lambda: all(future.done() for future in asked[:number]))

    for number in range(6):
        asked.append(pool.submit(job, number))
    pool.shutdown()

    assert all(future.done() for future in asked)
