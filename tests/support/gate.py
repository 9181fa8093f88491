"""A task that runs until the test releases it."""

import threading

from agent.commands.pool import TaskContext


class Gate:
    """A task body that waits until the test releases it."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.running_max = 0
        self._running = 0
        self._lock = threading.Lock()

    def body(self, context: TaskContext) -> None:
        """Wait until the test or the pool ends the task."""
        with self._lock:
            self._running += 1
            self.running_max = max(self.running_max, self._running)
        self.entered.release()
        while not self.go_on.wait(0.01):
            if context.stop():
                break
        with self._lock:
            self._running -= 1
