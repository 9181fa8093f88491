"""Waits for pools of tasks to become idle."""

from agent.commands.pool import TaskPool
from tests.support.waiting import wait_until


def wait_idle(pool: TaskPool, within_s: float) -> bool:
    """Wait until no task is queued or running; return True. Fail after `within_s`. Dropped tasks
    may be reported a moment later."""
    wait_until(lambda: not pool.queued_count() and not pool.running_count(), within_s=within_s)
    return True
