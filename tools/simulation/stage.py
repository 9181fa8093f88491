"""The common base of all schedules: the machines, the faults, and the oracle."""

import gc
import hashlib
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from suture.errors import SutureError
from tools.simulation.events import Event, Kind
from tools.simulation.faults import CrashTrigger, SeededFaults
from tools.simulation.machine import Machine
from tools.simulation.oracle import Oracle
from tools.simulation.simulated_os.fibers import Deadlock, Fiber, ProcessDied, Scheduler
from tools.simulation.simulated_os.kernel import Kernel
from tools.simulation.simulated_os.network import CallFailed, Network, NetworkConditions
from tools.simulation.simulated_os.world import around

STARTS_MAX: Final = 5
VIOLATIONS_MAX: Final = 20
JUMPS_MS: Final = (-86_400_000, -5_000, 60_000, 7_200_000)


@dataclass(slots=True)
class Result:
    """The result of a schedule."""

    seed: int
    step_count: int = 0
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    fingerprint: str = ""
    trace: list[str] = field(default_factory=list)


class ScheduleRun(ABC):
    """The state of one schedule while it runs. Subclasses define its actions."""

    def __init__(self, seed: int, root: Path, oracle: Oracle, *, traced: bool) -> None:
        self.result = Result(seed)
        self.where = "start"
        self._seed = seed
        self.root = root
        self._is_traced = traced
        self._digest = hashlib.blake2b(digest_size=8)
        self.dice = Random(f"{seed} order")
        self.scheduler = Scheduler(self.dice)
        self.network = Network(self.scheduler)
        self.oracle = oracle
        self.faults = SeededFaults(Random(f"{seed} faults"), oracle, note=self.note)
        self.kernel = Kernel(self.scheduler, self.faults)
        self.machines: list[Machine] = []
        self.scheduler.on_step = self._on_step

    # Defined by subclasses.

    @abstractmethod
    def actions(self) -> Mapping[Kind, Callable[[Event], None]]:
        """Return the actions that take time and run in parallel within a burst."""

    @abstractmethod
    def prepared(self) -> None:
        """Start all machines."""

    @abstractmethod
    def let_pass(self, fibers: Sequence[Fiber]) -> None:
        """Wait until the burst with these fibers is over."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for or order the repairs that make all replicas equal, after the last fault."""

    def finished(self) -> None:
        """Check the promises that can only be checked while all machines are up."""
        self.count("lived to the end")

    def surroundings(self) -> AbstractContextManager[None]:
        """Return the additional replacements around product code."""
        return nullcontext()

    # Output.

    def _on_step(self, what: str) -> None:
        line = f"{self.scheduler.current.name}: {what.replace(str(self.root), '')}"
        self._digest.update(line.encode())
        if self._is_traced:
            self.result.trace.append(f"{self.scheduler.step_count:6} {line}")

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        if self._is_traced:
            self.result.trace.append(line.replace(str(self.root), ""))

    def count(self, what: str, count: int = 1) -> None:
        """Count an event."""
        self.result.counts[what] += count

    # Running.

    def live(self, events: Sequence[Event], steps_min: int = 0) -> Result:
        """Run all events; return the result.

        If the events took fewer steps than `steps_min`, restart all machines repeatedly until this
        number is reached.
        """
        with (
            self.kernel.installed(),
            around(self.scheduler, self.network, self._seed),
            self.surroundings(),
        ):
            try:
                self.prepared()
                last = max((event.burst for event in events), default=-1)
                for burst in range(last + 1):
                    self.where = f"burst {burst}"
                    self._burst([event for event in events if event.burst == burst])
                    if len(self.oracle.violations) > VIOLATIONS_MAX:
                        break
                if not self.oracle.violations:
                    self._quiet(steps_min)
            except Deadlock as stuck:
                self.oracle.crashed(self.where, stuck)
            finally:
                self._abandon()
                gc.collect()
        result = self.result
        result.violations = self.oracle.violations
        result.step_count = self.scheduler.step_count
        result.counts.update(self.faults.counts)
        result.counts["messages"] = self.network.message_count
        result.fingerprint = self._digest.hexdigest()
        return result

    def start(self, node: Machine) -> None:
        """Start a machine. If it dies during the start, clean up and try again."""
        for _ in range(STARTS_MAX):
            if node.life is not None:
                self._bury(node)
            with self.judged(f"start of {node.name}"):
                if node.start():
                    return
            self.note(f"   {node.name} did not start: {node.last_refusal}")
        self.count("starts that failed")

    def _bury(self, node: Machine) -> None:
        fuse = self.faults.burnt.pop(node.name, None)
        is_cut = fuse is not None and fuse.is_cut
        node.bury(Random(f"{fuse.seed} cut") if fuse is not None and is_cut else None)

    def _burst(self, events: Sequence[Event]) -> None:
        self.note(f"== {self.where}")
        down = {event.node for event in events if event.kind is Kind.DOWN}
        for number, node in enumerate(self.machines):
            if number in down and node.is_up:
                node.stop()
            elif number not in down and not node.is_up:
                self.start(node)
        for event in events:
            self.note(f"== {event.told()}")
            self.prepare(event)
        actions = self.actions()
        self.let_pass(
            [self._begin(one, actions[one.kind]) for one in events if one.kind in actions]
        )
        self.faults.errors.clear()
        self.faults.flips.clear()
        self.faults.shortages.clear()
        for node in self.machines:
            if node.life is not None and node.life.is_dead:
                self._bury(node)
        self._look()

    def _look(self) -> None:
        for name, error in self.scheduler.failures:
            self.oracle.crashed(f"{self.where}, {name}", error)
        self.scheduler.failures.clear()
        with self.kernel.quiet():
            self.oracle.look(self.where)

    def prepare(self, event: Event) -> None:
        """Install the faults of an event, which occur later in the burst."""
        node, faults = self.machines[event.node], self.faults
        match event.kind:
            case Kind.CUT | Kind.KILL:
                fuse = CrashTrigger(event.amount, event.kind is Kind.CUT, event.seed)
                faults.fuses.setdefault(node.name, []).append(fuse)
            case Kind.LIE:
                faults.lies[node.name] = event.amount
            case Kind.ERRORS:
                faults.errors[node.name] = event.amount / 1000
            case Kind.FLIPS:
                faults.flips[node.name] = event.amount / 1000
            case Kind.SHORTAGE:
                faults.shortages[node.name] = event.amount / 1000
            case Kind.WEATHER:
                self.network.weather = weather_of(
                    event, [machine.name for machine in self.machines]
                )
            case Kind.CLOCK:
                dice = Random(event.seed)
                node.clock.offset_ms += dice.choice(JUMPS_MS)
            case _:
                pass

    def _begin(self, event: Event, action: Callable[[Event], None]) -> Fiber:
        def work() -> None:
            with self.judged(event.told()):
                for _ in range(event.seed % 7):
                    self.scheduler.point("wait")
                action(event)

        return self.scheduler.spawn(f"{event.kind}", work)

    @contextmanager
    def judged(self, what: str) -> Iterator[None]:
        """Ignore the errors that a call in the body may raise. Record any other exception as a
        violation."""
        try:
            yield
        except (SutureError, CallFailed) as error:
            self.note(f"   {what}: {error}")
            self.count("calls that failed")
        except (ProcessDied, Deadlock):
            raise
        except Exception as error:  # noqa: BLE001 - every exception is recorded
            self.oracle.crashed(f"{self.where}, {what}", error)
            if self._is_traced:
                self.result.trace.append(traceback.format_exc())

    # The quiet end.

    def _quiet(self, steps_min: int) -> None:
        """Run the quiet phase: stop all faults, start all machines, and make the replicas equal, as
        a control plane would."""
        self.where = "quiet"
        self.note("== quiet")
        self.network.weather = NetworkConditions()
        for faults in (
            *(self.faults.fuses, self.faults.lies, self.faults.errors, self.faults.flips),
            self.faults.shortages,
        ):
            faults.clear()
        for node in self.machines:
            if not node.is_up:
                self.start(node)
        self.settle()
        while self.scheduler.step_count < steps_min and self._start_again():
            self.count("starts of who was whole")
            self.settle()  # a start may find unfinished work of an earlier process
        self.finished()
        with self.kernel.quiet():
            self.oracle.look(self.where)
            if all(node.is_up for node in self.machines):
                self.oracle.converged()
            else:
                names = [f"{n.name}: {n.last_refusal}" for n in self.machines if not n.is_up]
                self.oracle.crashed(self.where, RuntimeError(f"does not start: {names}"))

    def _start_again(self) -> bool:
        """Stop and restart all machines; return True if all of them serve. The oracle later checks
        that intact replicas remained intact."""
        for node in self.machines:
            node.stop()
            self.start(node)
        return all(node.is_up for node in self.machines)

    def _abandon(self) -> None:
        """End all fibers, by killing their processes."""
        self.faults.fuses.clear()
        for node in self.machines:
            node.kill()
        with_work = [fiber for fiber in self.scheduler.fibers if fiber is not self.scheduler.main]
        for fiber in with_work:
            for life in fiber.lives:
                life.is_dead = True
        try:
            self.scheduler.block(lambda: len(self.scheduler.fibers) == 1, 3600.0)
        except Deadlock:
            return
        for node in self.machines:
            if node.life is not None and node.is_still():
                self.kernel.died(node.life)


def weather_of(event: Event, names: Sequence[str]) -> NetworkConditions:
    """Return the network conditions after an event."""
    dice = Random(f"{event.seed} weather")
    kind = dice.choice(("fine", "lossy", "late", "twice", "cut", "one way", "all"))
    weather = NetworkConditions()
    if kind in {"lossy", "all"}:
        weather.lost = dice.choice((0.02, 0.1))
    if kind in {"late", "all"}:
        weather.late, weather.late_s = 0.2, dice.choice((0.5, 4.0))
    if kind in {"twice", "all"}:
        weather.twice = 0.1
    if kind == "cut":
        weather.apart = {frozenset(dice.sample([*names, "client"], 2)) for _ in range(2)}
    if kind == "one way":
        source, target = dice.sample(list(names), 2)
        weather.one_way = {(source, target)}
    return weather
