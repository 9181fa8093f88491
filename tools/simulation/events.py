"""The events of a schedule, drawn from its seed: a list that can be printed and shortened.

Each event has its own seed, so that a removed event does not change the others. The events of one
burst run in parallel. Between bursts, dead processes are cleaned up, and the oracle checks the
promises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

NODES: Final = 4
COPIES: Final = 3
CONTAINERS: Final = 2
BURSTS: Final = 10
CALM_ODDS: Final = 0.5
KEPT_ODDS: Final = 0.5
IN_SERVICE: Final = "IN_SERVICE"
WANTED: Final = ("DECOMMISSIONING", IN_SERVICE, "ENTERING_MAINTENANCE")  # by a departure's amount
YOUTH: Final = 3  # bursts in which a container is written to


class Kind(StrEnum):
    """The kind of an event."""

    WRITE = "write"  # a client writes a block to all replicas
    CLOSE = "close"
    SCAN = "scan"
    RECONCILE = "reconcile"
    DELETE = "delete"  # delete a block, by order
    REPLICATE = "replicate"  # push a replica to a node without it
    ROT = "rot"  # the disk changes the bytes of a block
    ROT_TREE = "rot_tree"
    ROT_ROW = "rot_row"  # the index loses the row of a block
    ROT_BENEATH = "rot_beneath"  # as ROT, but the page cache keeps the earlier bytes
    DROP = "drop"  # delete a replica, by order, because other replicas exist
    LIE = "lie"  # the next writes are lost, cut short or changed on their way to the disk
    ERRORS = "errors"  # reads and writes fail, for a burst
    FLIPS = "flips"  # memory flips bits of read data, for a burst
    SHORTAGE = "shortage"  # opening a file fails because no descriptor is left, for a burst
    CUT = "cut"  # cut the power after a number of disk operations
    KILL = "kill"  # kill the process after a number of disk operations
    DOWN = "down"  # a node is off for a burst
    DEPART = "depart"  # an operator orders a node to leave service, or to return to it
    LEAVE = "leave"  # before the quiet phase, a node is switched off permanently
    WEATHER = "weather"  # change the network conditions
    CLOCK = "clock"  # a wall clock jumps, or drifts from now on
    SNAPSHOT = "snapshot"  # the state of the control plane is copied
    PUT_BACK = "put_back"  # the control plane is killed, and starts on that copy
    FORK = "fork"  # another control plane starts on a copy of the state


FAULTS: Final = {
    Kind.ROT: 6,
    Kind.ROT_TREE: 1,
    Kind.LIE: 2,
    Kind.ERRORS: 1,
    Kind.FLIPS: 2,
    Kind.CUT: 6,
    Kind.KILL: 2,
    Kind.DOWN: 1,
    Kind.WEATHER: 2,
    Kind.CLOCK: 1,
}
"""Random faults with their relative frequencies."""

DEATHS: Final = (Kind.CUT, Kind.CUT, Kind.KILL, Kind.LIE, Kind.ERRORS)  # in the middle of a repair


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `node` counts from 0; the meaning of the other fields depends on the kind."""

    burst: int
    kind: Kind
    node: int = 0
    container: int = 0
    block: int = 0
    amount: int = 0
    seed: int = 0

    def told(self) -> str:
        """Return the event as a line of text."""
        name = f"dn{self.node}" if self.node < NODES else "scm"
        words = {
            Kind.WRITE: f"block {self.block} of container {self.container}, {self.amount} chunks",
            Kind.CLOSE: f"container {self.container}",
            Kind.SCAN: f"container {self.container} on {name}",
            Kind.RECONCILE: f"container {self.container} on {name}",
            Kind.DELETE: f"block {self.block} of container {self.container}",
            Kind.REPLICATE: f"container {self.container} from {name}",
            Kind.ROT: f"block {self.block} of container {self.container} on {name}",
            Kind.ROT_ROW: f"row of some block on {name}",
            Kind.ROT_BENEATH: f"block {self.block} of container {self.container} on {name}",
            Kind.DROP: f"container {self.container} on {name}",
            Kind.ROT_TREE: f"tree of container {self.container} on {name}",
            Kind.LIE: f"{name}, {self.amount} writes",
            Kind.ERRORS: f"{name}, {self.amount} of 1,000",
            Kind.FLIPS: f"{name}, {self.amount} of 1,000 reads",
            Kind.SHORTAGE: f"{name}, {self.amount} of 1,000 opens",
            Kind.CUT: f"power of {name}, {self.amount} operations later",
            Kind.KILL: f"process of {name}, {self.amount} operations later",
            Kind.DOWN: f"{name}",
            Kind.DEPART: f"{name} is to be {WANTED[self.amount % len(WANTED)]}",
            Kind.LEAVE: f"{name}",
        }
        return f"burst {self.burst:2}: {self.kind} {words.get(self.kind, '')}".rstrip()


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameters of a schedule: the numbers of bursts and containers, the weights of faults, and
    the possible numbers of faults in a burst."""

    bursts: int = BURSTS
    containers: int = CONTAINERS
    faults: Mapping[Kind, int] = field(default_factory=lambda: FAULTS)
    faults_a_burst: Sequence[int] = (0, 1, 1, 2, 3)  # number of events: one of these


WHOLE: Final = Shape()


def some_of(faults: Mapping[Kind, int], dice: Random) -> dict[Kind, int]:
    """Return about half of the kinds of faults with their weights. Other kinds do not occur in the
    schedule.

    This is swarm testing (Groce, Zhang, Eide, Chen and Regehr, ISSTA 2012): in a schedule with all
    kinds of faults, one fault may hide an error that another fault would have shown.
    """
    chosen = [kind for kind in faults if dice.random() < KEPT_ODDS]
    return {kind: faults[kind] for kind in chosen or [dice.choice(list(faults))]}


def placed_on(container: int) -> list[int]:
    """Return the nodes on which a container is first created."""
    return [(container + number) % NODES for number in range(COPIES)]


def draw(seed: int, shape: Shape = WHOLE) -> list[Event]:
    """Return the schedule of a seed."""
    dice = Random(f"{seed} events")
    blocks = dict.fromkeys(range(shape.containers), 0)
    events: list[Event] = []
    for burst in range(shape.bursts):
        for container in range(shape.containers):
            events += _of_container(dice, burst, container, blocks)
        events += _nemesis(dice, burst, blocks, shape)
        events += _ordeal(dice, burst, blocks, shape)
    return events


def draw_drops(seed: int, shape: Shape = WHOLE) -> list[Event]:
    """Return the schedule of a seed, with orders to delete replicas while disks lose data."""
    dice = Random(f"{seed} drops")
    events = draw(seed, shape)
    counts = {
        number + 1: max((e.block for e in events if e.container == number + 1), default=1)
        for number in range(shape.containers)
    }
    for burst in range(YOUTH + 1, shape.bursts):
        for container in range(shape.containers):
            if burst - 2 * container > YOUTH:
                events += _drops(dice, burst, container, counts[container + 1])
    return sorted(events, key=lambda event: event.burst)


def _drops(dice: Random, burst: int, container: int, count: int) -> list[Event]:
    holders = placed_on(container + 1)
    events = []
    for _ in range(dice.choice((0, 0, 1, 2))):
        node, block = dice.choice(holders), dice.randint(1, count)
        beneath = _event(dice, burst, Kind.ROT_BENEATH, node=node, container=container, block=block)
        events.append(beneath)
    for node in dice.sample(holders, dice.choice((0, 0, 0, 1, 1, 2))):
        events.append(_event(dice, burst, Kind.DROP, node=node, container=container))
    return events


def _ordeal(dice: Random, burst: int, blocks: dict[int, int], shape: Shape) -> list[Event]:
    """Return events for a damage, its repair, and the death of a process during the repair. Purely
    random events seldom occur in this order."""
    container = dice.randrange(shape.containers)
    if burst - 2 * container <= YOUTH or not blocks[container] or dice.random() < CALM_ODDS:
        return []
    node = dice.choice(placed_on(container + 1))
    count = dice.randint(1, min(3, blocks[container]))
    events = [
        _event(dice, burst, Kind.ROT, node=node, container=container, block=block)
        for block in dice.sample(range(1, blocks[container] + 1), count)
    ]
    events.append(_event(dice, burst, Kind.SCAN, node=node, container=container))
    deaths = [one for one in DEATHS if one in shape.faults]
    if burst + 1 < shape.bursts:
        events.append(_event(dice, burst + 1, Kind.RECONCILE, node=node, container=container))
        if deaths:
            kind = dice.choice(deaths)
            amount = {Kind.LIE: 2, Kind.ERRORS: 50}.get(kind, dice.randint(1, 60))
            events.append(_event(dice, burst + 1, kind, node=node, amount=amount))
    return events


def _of_container(dice: Random, burst: int, container: int, blocks: dict[int, int]) -> list[Event]:
    age = burst - 2 * container
    if age < 0:
        return []
    if age < YOUTH:
        events = []
        for _ in range(dice.choice((1, 1, 2))):
            blocks[container] += 1
            events.append(
                _event(
                    dice,
                    burst,
                    Kind.WRITE,
                    container=container,
                    block=blocks[container],
                    amount=dice.choice((1, 1, 2, 3)),
                )
            )
        return events
    if age == YOUTH:
        return [_event(dice, burst, Kind.CLOSE, container=container)]
    kinds = [Kind.SCAN, Kind.RECONCILE, Kind.RECONCILE, Kind.DELETE, Kind.REPLICATE, Kind.CLOSE]
    return [
        _event(
            dice,
            burst,
            dice.choices(kinds, (4, 4, 4, 1, 1, 1))[0],
            node=dice.randrange(NODES),
            container=container,
            block=dice.randint(1, max(blocks[container], 1)),
        )
        for _ in range(dice.choice((0, 1, 1, 2)))
    ]


def _nemesis(dice: Random, burst: int, blocks: dict[int, int], shape: Shape) -> list[Event]:
    events = []
    for _ in range(dice.choice(shape.faults_a_burst)):
        kind = dice.choices(list(shape.faults), list(shape.faults.values()))[0]
        container = dice.randrange(shape.containers)
        amounts = {Kind.LIE: (1, 2, 4), Kind.ERRORS: (5, 20, 100), Kind.FLIPS: (100, 400)}
        amount = dice.choice(amounts.get(kind, (0,)))
        if kind in {Kind.CUT, Kind.KILL}:
            amount = int(dice.expovariate(1 / 25)) + 1
        events.append(
            _event(
                dice,
                burst,
                kind,
                node=dice.randrange(NODES),
                container=container,
                block=dice.randint(1, max(blocks[container], 1)),
                amount=amount,
            )
        )
    return events


def _event(
    dice: Random,
    burst: int,
    kind: Kind,
    *,
    node: int = 0,
    container: int = 0,
    block: int = 0,
    amount: int = 0,
) -> Event:
    return Event(burst, kind, node, container + 1, block, amount, dice.randrange(2**32))
