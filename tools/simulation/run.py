"""One schedule from its first event to the quiet after it, and what was seen."""

import gc
import hashlib
import logging
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import structlog

from agent.errors import SutureError
from agent.plan.actions import Deletes
from merkle.replica import BlockId, ContainerId
from tools.simulation.actions import ACTIONS
from tools.simulation.cluster import Datanode
from tools.simulation.events import NODES, Event, Kind, draw, placed_on
from tools.simulation.faults import Fuse, SeededFaults
from tools.simulation.oracle import Oracle
from tools.simulation.outside.fibers import Died, Fiber, Scheduler, Stuck
from tools.simulation.outside.kernel import Kernel
from tools.simulation.outside.network import CallFailed, Network, Weather
from tools.simulation.outside.world import around

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only private directories are made in it
QUIET_ROUNDS: Final = 3
STARTS_MAX: Final = 5
VIOLATIONS_MAX: Final = 20


@dataclass(slots=True)
class Result:
    """What one schedule came to."""

    seed: int
    step_count: int = 0
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    fingerprint: str = ""
    trace: list[str] = field(default_factory=list)


def simulate(seed: int, events: Sequence[Event] | None = None, *, traced: bool = False) -> Result:
    """Live a schedule: that of the seed, or these events of it."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chosen = draw(seed) if events is None else list(events)
    root = Path(
        tempfile.mkdtemp(prefix="suture-simulation-", dir=MEMORY if MEMORY.is_dir() else None)
    )
    gc.freeze()  # what is imported need not be looked through after each schedule
    gc.disable()  # or it would run what generators leave behind at moments of its own
    told, sys.unraisablehook = sys.unraisablehook, lambda _: None  # generators of dead processes
    try:
        run = Run(seed, root, traced=traced)
        return run.live(chosen)
    finally:
        gc.enable()
        sys.unraisablehook = told
        shutil.rmtree(root, ignore_errors=True)


class Run:
    """The state of one schedule while it runs."""

    def __init__(self, seed: int, root: Path, *, traced: bool) -> None:
        self.result = Result(seed)
        self.where = "start"
        self._seed = seed
        self._root = str(root)
        self._is_traced = traced
        self._digest = hashlib.blake2b(digest_size=8)
        self.dice = Random(f"{seed} order")
        self.scheduler = Scheduler(self.dice)
        self.network = Network(self.scheduler)
        self.oracle = Oracle(())
        self.faults = SeededFaults(Random(f"{seed} faults"), self.oracle, note=self.note)
        self.kernel = Kernel(self.scheduler, self.faults)
        self.nodes = [
            Datanode(number, root, self.scheduler, self.kernel, self.network)
            for number in range(NODES)
        ]
        self.oracle.nodes = self.nodes
        self.held_by: dict[int, set[str]] = defaultdict(set)
        self.scheduler.on_step = self._on_step

    # What is seen of it.

    def _on_step(self, what: str) -> None:
        line = f"{self.scheduler.current.name}: {what.replace(self._root, '')}"
        self._digest.update(line.encode())
        if self._is_traced:
            self.result.trace.append(f"{self.scheduler.step_count:6} {line}")

    def note(self, line: str) -> None:
        """Tell who reads the trace."""
        if self._is_traced:
            self.result.trace.append(line.replace(self._root, ""))

    def count(self, what: str, count: int = 1) -> None:
        """Count what happened."""
        self.result.counts[what] += count

    def holders(self, event: Event) -> set[str]:
        """Return who was given the container of an event."""
        begun = {self.nodes[number].name for number in placed_on(event.container)}
        return begun | self.held_by[event.container]

    # Its life.

    def live(self, events: Sequence[Event]) -> Result:
        """Let all happen; return what came of it."""
        with self.kernel.installed(), around(self.scheduler, self.network, self._seed):
            try:
                self._start_all()
                last = max((event.burst for event in events), default=-1)
                for burst in range(last + 1):
                    self.where = f"burst {burst}"
                    self._burst([event for event in events if event.burst == burst])
                    if len(self.oracle.violations) > VIOLATIONS_MAX:
                        break
                if not self.oracle.violations:
                    self._quiet()
            except Stuck as stuck:
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

    def _start_all(self) -> None:
        for node in self.nodes:
            node.confirm = self._confirm
            self._start(node)

    def _confirm(self, container_id: ContainerId, asked: Sequence[BlockId]) -> Deletes:
        ordered = {one for one in asked if self.oracle.is_ordered(container_id, one)}
        return Deletes(frozenset(ordered), frozenset(set(asked) - ordered))

    def _start(self, node: Datanode) -> None:
        """Start a datanode; when it dies meanwhile, bury it and try again."""
        for _ in range(STARTS_MAX):
            if node.life is not None:
                self._bury(node)
            with self._judged(f"start of {node.name}"):
                if node.start():
                    return
            self.note(f"   {node.name} did not start: {node.last_refusal}")
        self.count("starts that failed")

    def _bury(self, node: Datanode) -> None:
        fuse = self.faults.burnt.pop(node.name, None)
        is_cut = fuse is not None and fuse.is_cut
        node.bury(Random(f"{fuse.seed} cut") if fuse is not None and is_cut else None)

    def _burst(self, events: Sequence[Event]) -> None:
        self.note(f"== {self.where}")
        down = {event.node for event in events if event.kind is Kind.DOWN}
        for number, node in enumerate(self.nodes):
            if number in down and node.is_up:
                node.stop()
            elif number not in down and not node.is_up:
                self._start(node)
        for event in events:
            self.note(f"== {event.told()}")
            self._prepare(event)
        fibers = [self._begin(event) for event in events if event.kind in ACTIONS]
        self._wait(fibers)
        self.faults.errors.clear()
        self.faults.flips.clear()
        for node in self.nodes:
            if node.life is not None and node.life.is_dead:
                self._bury(node)
        with self.kernel.quiet():
            self.oracle.look(self.where)

    def _prepare(self, event: Event) -> None:
        """Arm what an event arms."""
        node, faults = self.nodes[event.node], self.faults
        match event.kind:
            case Kind.CUT | Kind.KILL:
                fuse = Fuse(event.amount, event.kind is Kind.CUT, event.seed)
                faults.fuses.setdefault(node.name, []).append(fuse)
            case Kind.LIE:
                faults.lies[node.name] = event.amount
            case Kind.ERRORS:
                faults.errors[node.name] = event.amount / 1000
            case Kind.FLIPS:
                faults.flips[node.name] = event.amount / 1000
            case Kind.WEATHER:
                self.network.weather = weather_of(event)
            case Kind.CLOCK:
                dice = Random(event.seed)
                node.clock.offset_ms += dice.choice((-86_400_000, -5_000, 60_000, 7_200_000))
            case _:
                pass

    def _begin(self, event: Event) -> Fiber:
        def work() -> None:
            with self._judged(event.told()):
                for _ in range(event.seed % 7):
                    self.scheduler.point("wait")
                ACTIONS[event.kind](self, event)

        return self.scheduler.spawn(f"{event.kind}", work)

    @contextmanager
    def _judged(self, what: str) -> Iterator[None]:
        """Take the errors that a call may end with; any other is a defect."""
        try:
            yield
        except (SutureError, CallFailed) as error:
            self.note(f"   {what}: {error}")
            self.count("calls that failed")
        except (Died, Stuck):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self.oracle.crashed(f"{self.where}, {what}", error)
            if self._is_traced:
                import traceback

                self.result.trace.append(traceback.format_exc())

    def _wait(self, fibers: Sequence[Fiber]) -> None:
        self.scheduler.block(lambda: all(fiber.has_ended for fiber in fibers))
        self.scheduler.block(lambda: len(self.scheduler.fibers) == 1)

    # The quiet after it.

    def _quiet(self) -> None:
        """No faults any more: all are up, and do what the control plane would order."""
        self.where = "quiet"
        self.note("== quiet")
        self.network.weather = Weather()
        for faults in (self.faults.fuses, self.faults.lies, self.faults.errors, self.faults.flips):
            faults.clear()
        for node in self.nodes:
            if not node.is_up:
                self._start(node)
        containers = sorted({container for container, _ in self.oracle.blocks})
        for container in containers:
            self._settle(ContainerId(container))
        with self.kernel.quiet():
            self.oracle.look(self.where)
            if all(node.is_up for node in self.nodes):
                self.oracle.converged()
            else:
                names = [f"{n.name}: {n.last_refusal}" for n in self.nodes if not n.is_up]
                self.oracle.crashed(self.where, RuntimeError(f"does not start: {names}"))

    def _settle(self, container_id: ContainerId) -> None:
        for _ in range(QUIET_ROUNDS):
            for node in self._having(container_id):
                assert node.agent is not None, "it is up"
                with self._judged(f"close on {node.name}"), node.running():
                    node.agent.store.close_container(container_id, force=True)
            for node in self._having(container_id):
                with self._judged(f"scan on {node.name}"), node.running():
                    node.scan(container_id)
            for node in self._having(container_id):
                others = [other for other in self._having(container_id) if other is not node]
                with self._judged(f"reconcile on {node.name}"), node.running():
                    node.reconcile(container_id, others)

    def _having(self, container_id: ContainerId) -> list[Datanode]:
        with self.kernel.quiet():
            return [
                node
                for node in self.nodes
                if node.agent is not None and container_id in node.agent.store.replica_ids()
            ]

    def _abandon(self) -> None:
        """End all fibers, whatever they are at."""
        self.faults.fuses.clear()
        for node in self.nodes:
            node.kill()
        with_work = [fiber for fiber in self.scheduler.fibers if fiber is not self.scheduler.main]
        for fiber in with_work:
            for life in fiber.lives:
                life.is_dead = True
        try:
            self.scheduler.block(lambda: len(self.scheduler.fibers) == 1, 3600.0)
        except Stuck:
            return
        for node in self.nodes:
            if node.life is not None and node.is_still():
                self.kernel.died(node.life)


def weather_of(event: Event) -> Weather:
    """Return how messages fare from an event on."""
    dice = Random(f"{event.seed} weather")
    names = [f"dn{number}" for number in range(NODES)]
    kind = dice.choice(("fine", "lossy", "late", "twice", "cut", "one way", "all"))
    weather = Weather()
    if kind in {"lossy", "all"}:
        weather.lost = dice.choice((0.02, 0.1))
    if kind in {"late", "all"}:
        weather.late, weather.late_s = 0.2, dice.choice((0.5, 4.0))
    if kind in {"twice", "all"}:
        weather.twice = 0.1
    if kind == "cut":
        weather.apart = {frozenset(dice.sample([*names, "client"], 2)) for _ in range(2)}
    if kind == "one way":
        source, target = dice.sample(names, 2)
        weather.one_way = {(source, target)}
    return weather
