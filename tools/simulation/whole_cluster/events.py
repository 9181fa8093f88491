"""Schedules under a control plane: clients put and delete keys, while faults of all kinds occur."""

from collections.abc import Sequence
from random import Random
from typing import Final

from tools.simulation.events import NODES, Event, Kind, Shape

BURSTS: Final = 11
SEEDS_ROUND: Final = 80
BEREAVED: Final = frozenset({0, 20, 40, 70})  # of a round of seeds: a node never comes back
DEPARTING: Final = frozenset({10, 30})  # likewise: an operator decommissions nodes
SHORT_OF_FILES: Final = frozenset({0, 10})  # likewise: a host has no descriptor left
OLDER: Final = frozenset({50})  # likewise: an older state of the control plane is put back
FORKED: Final = frozenset({60})  # likewise: two control planes run on copies of one state
TWINS: Final = frozenset({20, 40})  # likewise: a datanode advertises the address of another
AWAY: Final = frozenset({40})  # likewise: a host is off while the control plane restarts
SHORTAGE_BURSTS: Final = 6
AWAY_BURSTS: Final = 5
FORKED_PUTS: Final = 6
CONTAINERS_MAX: Final = 6  # ids in events; absent ones are ignored
NEMESES: Final = {
    Kind.ROT: 6,
    Kind.ROT_TREE: 1,
    Kind.LIE: 2,
    Kind.FLIPS: 2,
    Kind.CUT: 6,
    Kind.KILL: 3,
    Kind.DOWN: 2,
    Kind.WEATHER: 3,
    Kind.CLOCK: 1,
}
WHOLE: Final = Shape(BURSTS, CONTAINERS_MAX, NEMESES, (0, 1, 1, 2))


def draw(seed: int, shape: Shape = WHOLE) -> list[Event]:
    """Return the schedule of a seed. In a WRITE event, `block` is the number of the put. In other
    events, `block` selects the put that they affect.

    Clients put keys in the first half of the schedule.
    """
    dice = Random(f"{seed} led events")
    events: list[Event] = []
    puts = 0
    for burst in range(shape.bursts):
        if burst <= shape.bursts // 2:
            for _ in range(dice.choice((0, 1, 1, 2))):
                puts += 1
                amount = dice.choice((1, 1, 2))
                events.append(Event(burst, Kind.WRITE, 0, 0, puts, amount, dice.randrange(2**32)))
        elif puts and dice.random() < 0.15:
            events.append(
                Event(burst, Kind.DELETE, 0, 0, dice.randint(1, puts), 0, dice.randrange(2**32))
            )
        events += [_nemesis(dice, burst, shape) for _ in range(dice.choice(shape.faults_a_burst))]
    place = seed % SEEDS_ROUND
    if place in OLDER:
        writes = sorted({event.burst for event in events if event.kind is Kind.WRITE})
        return [*events, *_older_state(seed, shape, writes or [0])]
    if place in FORKED:
        return [*events, *_fork(seed, shape, puts)]
    if place in DEPARTING:
        events += _departures(seed, shape)
    if place in SHORT_OF_FILES:
        events += _shortages(seed, shape)
    if place in AWAY:
        events += _absence(seed, shape, puts)
    return [*events, *_bereavement(seed, shape)] if place in BEREAVED else events


def _departures(seed: int, shape: Shape) -> list[Event]:
    """Return the events in which datanodes leave service, one at a time, and return."""
    dice = Random(f"{seed} departures")
    events = []
    burst = dice.randint(1, 4)
    while burst < shape.bursts:
        node = dice.randrange(NODES)
        events.append(Event(burst, Kind.DEPART, node, amount=dice.choice((0, 0, 2))))
        burst += dice.randint(1, 4)
        if burst < shape.bursts and dice.random() < 0.6:
            events.append(Event(burst, Kind.DEPART, node, amount=1))
            burst += dice.randint(0, 2)
        else:
            break
    return events


def _shortages(seed: int, shape: Shape) -> list[Event]:
    """Return events in consecutive bursts in which a host has few or no free file descriptors. They
    last long enough for two checks of its volumes."""
    dice = Random(f"{seed} shortages")
    first, node = dice.randint(0, shape.bursts // 2), dice.randrange(NODES)
    amount = dice.choice((300, 1_000, 1_000))
    last = min(first + SHORTAGE_BURSTS, shape.bursts)
    return [Event(burst, Kind.SHORTAGE, node, amount=amount) for burst in range(first, last)]


def _absence(seed: int, shape: Shape, puts: int) -> list[Event]:
    """Return the events in which a host is off while the control plane restarts, and clients put
    more keys before the host is back.
    """
    dice = Random(f"{seed} absence")
    first, node = dice.randint(1, shape.bursts - AWAY_BURSTS), dice.randrange(NODES)
    away = range(first, first + AWAY_BURSTS)
    return [
        Event(first, Kind.KILL, NODES, amount=1),
        *(Event(burst, Kind.DOWN, node) for burst in away),
        *(
            Event(burst, Kind.WRITE, block=put, amount=1, seed=dice.randrange(2**32))
            for put, burst in enumerate(away[1:], puts + 1)
        ),
    ]


def _older_state(seed: int, shape: Shape, writes: Sequence[int]) -> list[Event]:
    """Return two events: the control plane's state is copied while clients write, and some bursts
    later, the control plane is restarted on this copy."""
    dice = Random(f"{seed} older state")
    first = dice.choice(writes)
    second = dice.randint(first + 1, shape.bursts - 2)
    return [
        Event(first, Kind.SNAPSHOT, NODES, seed=dice.randrange(2**32)),
        Event(second, Kind.PUT_BACK, NODES),
    ]


def _fork(seed: int, shape: Shape, puts: int) -> list[Event]:
    """Return the start of a second control plane, and keys that clients put meanwhile and later."""
    dice = Random(f"{seed} fork")
    first = dice.randint(1, shape.bursts // 2)
    events = [Event(first, Kind.FORK, NODES, seed=dice.randrange(2**32))]
    for number in range(FORKED_PUTS):
        put = puts + 1 + number
        events.append(
            Event(first + number // 3, Kind.WRITE, block=put, amount=1, seed=dice.randrange(2**32))
        )
    return events


def _bereavement(seed: int, shape: Shape) -> list[Event]:
    """Return the losses at the end of a schedule: a datanode that never returns, and lost rows in
    the indexes of others."""
    dice = Random(f"{seed} bereavement")
    gone, *left = dice.sample(range(NODES), NODES)
    events = [Event(shape.bursts - 1, Kind.LEAVE, gone)]
    for node in left[: dice.randint(1, 2)]:
        for _ in range(dice.randint(1, 2)):
            events.append(Event(shape.bursts - 1, Kind.ROT_ROW, node, seed=dice.randrange(2**32)))
    return events


def _nemesis(dice: Random, burst: int, shape: Shape) -> Event:
    [kind] = dice.choices(list(shape.faults), list(shape.faults.values()))
    amount = 0
    if kind in {Kind.CUT, Kind.KILL}:
        amount = int(dice.expovariate(1 / 60)) + 1
    elif kind is Kind.LIE:
        amount = dice.choice((1, 2))
    elif kind is Kind.FLIPS:
        amount = dice.choice((100, 300))
    machines = NODES + 1 if kind in {Kind.CUT, Kind.KILL, Kind.DOWN, Kind.CLOCK} else NODES
    return Event(
        burst,
        kind,
        dice.randrange(machines),
        dice.randint(1, shape.containers),
        dice.randrange(1, 100),
        amount,
        dice.randrange(2**32),
    )
