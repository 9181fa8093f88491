"""A simulated host: a disk, clocks, and at most one running process."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from suture.errors import SutureError
from tools.simulation.simulated_os.disk import Disk
from tools.simulation.simulated_os.fibers import ProcessDied, ProcessLifetime, Scheduler
from tools.simulation.simulated_os.kernel import Kernel
from tools.simulation.simulated_os.network import Network


class Clock:
    """The clocks of one host, which may drift and jump relative to the simulation's time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_ms = 0
        self.drift = 0.0

    def now_ms(self) -> int:
        """Return wall time in milliseconds."""
        true_s = 1_700_000_000 + self._scheduler.now_s
        return int((true_s + self._scheduler.now_s * self.drift) * 1000) + self.offset_ms

    def monotonic_s(self) -> float:
        """Return monotonic time in seconds."""
        return self._scheduler.now_s * (1 + self.drift)


class Machine(ABC):
    """A host whose process is started and killed. Subclasses define `boot`."""

    def __init__(
        self,
        name: str,
        address: str,
        root: Path,
        scheduler: Scheduler,
        kernel: Kernel,
        network: Network,
    ) -> None:
        self.name = name
        self.address = address
        self.scheduler = scheduler
        self.kernel = kernel
        self.network = network
        self.clock = Clock(scheduler)
        self.disk = Disk(root / name)
        kernel.disks.append(self.disk)
        self.life: ProcessLifetime | None = None
        self.start_count = 0
        self.last_refusal = ""

    @abstractmethod
    def boot(self, life: ProcessLifetime) -> None:
        """Create the components of the process. Raise SutureError if that fails."""

    @abstractmethod
    def shut(self) -> None:
        """Stop the process as an operator does."""

    @abstractmethod
    def forget(self) -> None:
        """Forget the process with all its memory."""

    @property
    def is_up(self) -> bool:
        """True if a process runs and serves."""
        return self.life is not None and not self.life.is_dead

    @contextmanager
    def running(self) -> Iterator[ProcessLifetime]:
        """Run the body of the block as code of this host's process."""
        assert self.life is not None, f"{self.name} is down"
        fiber = self.scheduler.current
        fiber.lives.append(self.life)
        try:
            yield self.life
        finally:
            fiber.lives.pop()

    def start(self) -> bool:
        """Start a process, which recovers its state. Return True if it serves afterwards, or False
        if it refused to start or died during the start."""
        assert self.life is None, f"{self.name} runs already"
        life = self.life = ProcessLifetime(self.name)
        self.start_count += 1
        try:
            with self.running():
                self.boot(life)
        except ProcessDied:
            return False
        except SutureError as error:
            self.last_refusal = str(error)
            life.is_dead = True
            return False
        return True

    def kill(self) -> None:
        """Kill the process. Its fibers end at their next step. Call `bury` after that."""
        if self.life is not None:
            self.life.is_dead = True

    def is_still(self) -> bool:
        """True if no fiber runs code of the dead process."""
        return not any(self.life in fiber.lives for fiber in self.scheduler.fibers)

    def bury(self, dice: Random | None) -> None:
        """Clean up after a dead process. If `dice` is given, the power was cut: a random part of
        the unsynced data is lost."""
        assert self.life is not None, "nothing died"
        self.scheduler.block(self.is_still)
        self.forget()
        self.kernel.died(self.life)
        self.life = None
        if dice is not None:
            self.disk.cut(dice)

    def stop(self) -> None:
        """Stop the process as an operator does."""
        if self.is_up:
            try:
                with self.running():
                    self.shut()
            except ProcessDied:
                pass
        self.kill()
        self.bury(None)
