"""Fibers: simulated threads. One fiber runs at a time, and the seed determines which.

A fiber is a greenlet. All fibers are in one thread of the operating system, and a switch needs no
system call. A switch is possible in two functions:

- `point` marks a disk operation or a message. Either the fiber continues, or another fiber runs, at
  random.
- `block` waits for a lock, a condition, an event or an instant. Other fibers run until the
  condition is true.

The real code therefore runs unchanged, and the same seed gives the same order. If all fibers wait,
the clock advances to the first instant for which a fiber waits.

If a fiber runs code of a process that dies, `ProcessDied` is raised in it at the next point.
"""

import _thread
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final

from greenlet import getcurrent, greenlet

SWITCH_ODDS: Final = 0.15  # per point: probability that another fiber continues
STEPS_MAX: Final = 400_000  # per schedule: more steps mean a loop
STEP_S: Final = 0.000_2  # simulated duration of a step


class ProcessDied(BaseException):
    """Raised in a fiber whose process is dead. No product code catches it."""

    def __init__(self, life: "ProcessLifetime") -> None:
        super().__init__(f"{life.name} died")
        self.life = life


class Deadlock(Exception):
    """Raised if all fibers wait for each other, or if there are too many steps."""


@dataclass(eq=False, slots=True)
class ProcessLifetime:
    """A process of a datanode or control plane, from its start to its death."""

    name: str
    is_dead: bool = False


class WorkerFiber:
    """A greenlet that runs one job after another. It is reused and never ends, because the end of a
    greenlet would switch to its creator."""

    idle: "ClassVar[list[WorkerFiber]]"
    all: "ClassVar[list[WorkerFiber]]"  # one that waits must not be collected: it would be woken

    def __init__(self) -> None:
        self.job: Callable[[], None] = lambda: None
        self.greenlet = greenlet(self._work)
        WorkerFiber.all.append(self)

    def _work(self) -> None:
        while True:
            self.job()


WorkerFiber.idle, WorkerFiber.all = [], []


@dataclass(eq=False, slots=True)
class Fiber:
    """A simulated thread. `lives` has the processes whose code it runs, from the outermost caller
    to the innermost callee."""

    name: str
    runs_in: greenlet
    lives: list[ProcessLifetime] = field(default_factory=list)
    condition: Callable[[], bool] | None = None  # the condition that it waits for
    until_s: float | None = None
    has_ended: bool = False
    is_quiet: bool = False  # its disk operations are not part of the schedule
    number: int = 0
    hand: WorkerFiber | None = None

    def must_die(self) -> bool:
        """True if the process whose code the fiber runs is dead."""
        return bool(self.lives) and self.lives[-1].is_dead


class Scheduler:
    """All fibers of one schedule. The creating thread is the first of them."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now_s = 1_000.0
        self.step_count = 0
        self.on_step: Callable[[str], None] = lambda _: None
        self.main = Fiber("main", getcurrent())
        self.fibers = [self.main]
        self.current = self.main
        self._thread = _thread.get_ident()
        self._made = 0
        self._trouble = ""
        self.failures: list[tuple[str, BaseException]] = []

    def is_inside(self) -> bool:
        """Return True if the calling thread is part of the simulation."""
        return _thread.get_ident() == self._thread

    def spawn(
        self, name: str, work: Callable[[], None], life: ProcessLifetime | None = None
    ) -> Fiber:
        """Start a fiber that calls `work`, and return it. It runs when the scheduler chooses it. If
        `work` raises an exception other than `ProcessDied`, a failure is recorded."""
        lives = self.current.lives[-1:] if life is None else [life]
        self._made += 1
        hand = WorkerFiber.idle.pop() if WorkerFiber.idle else WorkerFiber()
        fiber = Fiber(name, hand.greenlet, list(lives), number=self._made, hand=hand)
        self.fibers.append(fiber)

        def run() -> None:
            try:
                if not fiber.must_die():
                    work()
            except ProcessDied:
                pass
            except BaseException as error:  # noqa: BLE001 - it is judged: nothing may get here
                self.failures.append((fiber.name, error))
            self._end(fiber)

        hand.job = run
        return fiber

    def point(self, what: str) -> None:
        """Count a step, and with the probability SWITCH_ODDS, switch to another fiber."""
        self.step_count += 1
        self.now_s += STEP_S
        self.on_step(what)
        fiber = self.current
        if self.step_count > STEPS_MAX:
            raise Deadlock(f"more than {STEPS_MAX} steps")
        if len(self.fibers) > 1 and self.dice.random() < SWITCH_ODDS:
            self._switch(fiber)
        if fiber.must_die():
            raise ProcessDied(fiber.lives[-1])

    def block(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `condition` is true, or until the timeout; return whether it is true."""
        fiber = self.current
        if fiber.must_die():
            raise ProcessDied(fiber.lives[-1])
        if condition():
            return True
        fiber.condition = condition
        fiber.until_s = None if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        self._switch(fiber)
        fiber.condition, fiber.until_s = None, None
        if fiber.must_die():
            raise ProcessDied(fiber.lives[-1])
        return condition()

    def sleep(self, seconds: float) -> None:
        """Wait for this number of simulated seconds."""
        self.block(lambda: False, seconds)

    def settle(self, timeout_s: float, is_done: Callable[[], bool]) -> bool:
        """Let the other fibers run until `is_done` returns True, or until the timeout; return
        whether it is done."""
        return self.block(is_done, timeout_s)

    def _next(self) -> Fiber:
        while True:  # inlined: a cluster has some fifty fibers, each checked thousands of times
            now_s = self.now_s
            ready = [
                fiber
                for fiber in self.fibers
                if (condition := fiber.condition) is None
                or ((until_s := fiber.until_s) is not None and now_s >= until_s)
                or ((lives := fiber.lives) and lives[-1].is_dead)
                or condition()
            ]
            if ready:
                return ready[0] if len(ready) == 1 else self.dice.choice(ready)
            moments = [fiber.until_s for fiber in self.fibers if fiber.until_s is not None]
            if not moments:
                waiting = ", ".join(fiber.name for fiber in self.fibers)
                self._trouble = f"all wait for each other: {waiting}"
                self.main.condition = None
                return self.main
            self.now_s = max(self.now_s, min(moments))

    def _switch(self, fiber: Fiber) -> None:
        after = self._next()
        if after is not fiber:
            self.current = after
            after.runs_in.switch()
        if fiber is self.main and self._trouble:
            trouble, self._trouble = self._trouble, ""
            raise Deadlock(trouble)

    def _end(self, fiber: Fiber) -> None:
        """End this fiber and switch to another one."""
        fiber.has_ended = True
        self.fibers.remove(fiber)
        assert fiber.hand is not None, "the first one does not end"
        WorkerFiber.idle.append(fiber.hand)
        after = self._next()
        self.current = after
        after.runs_in.switch()  # returns when this greenlet gets its next job
