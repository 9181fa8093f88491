"""Waiting for pools of tasks."""

from agent.commands.pool import TaskPool
from tests.support.waiting import wait_until


def wait_idle(pool: TaskPool, within_s: float) -> bool:
    """Wait until nothing is queued or runs; what was dropped may be told of a moment later."""
    wait_until(lambda: not pool.queued_count() and not pool.running_count(), within_s=within_s)
    return True
