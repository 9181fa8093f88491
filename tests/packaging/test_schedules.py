"""What is drawn for the seeds of the simulation."""

from collections import Counter

import pytest

from tools.simulation.events import WHOLE, Event, Kind
from tools.simulation.schedule import SWARM_FROM, drawn, has_drops, is_led, shape_of
from tools.simulation.whole_cluster.events import AWAY, SEEDS_ROUND

SEEDS = range(SWARM_FROM, SWARM_FROM + 400)
ORDEALS = {Kind.ROT}  # drawn beside the faults of a shape, with the repair of what they damage


def faults_in(events: list[Event]) -> set[Kind]:
    return {event.kind for event in events} & set(WHOLE.faults)


def test_a_swarm_leaves_kinds_of_faults_out_and_misses_none() -> None:
    """
    Each kind of fault is in some schedules and left out of as many; none has others than drawn.
    """
    chosen: Counter[Kind] = Counter()
    for seed in SEEDS:
        faults = set(shape_of(seed).faults)
        chosen.update(faults)
        assert faults
        is_away = is_led(seed) and seed % SEEDS_ROUND in AWAY
        ordeals = ORDEALS | ({Kind.DOWN, Kind.KILL} if is_away else set())
        assert faults_in(drawn(seed)) <= faults | ordeals

    for kind in WHOLE.faults:
        of = sum(1 for seed in SEEDS if not is_led(seed) or kind is not Kind.ERRORS)
        assert 0.4 < chosen[kind] / of < 0.6, kind


def test_a_swarm_has_fewer_bursts_and_no_fewer_faults_in_each() -> None:
    """Only the length of a schedule is reduced."""

    def faults_a_burst(seeds: range) -> float:
        events = [event for seed in seeds for event in drawn(seed)]
        faults = sum(1 for event in events if event.kind in WHOLE.faults)
        return faults / sum(shape_of(seed).bursts for seed in seeds)

    assert faults_a_burst(SEEDS) >= faults_a_burst(range(1, 401))
    assert all(shape_of(seed).bursts < shape_of(seed - SWARM_FROM).bursts for seed in SEEDS)


@pytest.mark.parametrize("first", [1, SWARM_FROM])
def test_swarms_are_of_all_kinds_that_whole_schedules_are(first: int) -> None:
    """
    Under a control plane, with datanodes that leave, and with orders to delete whole replicas.
    """
    seeds = range(first, first + 400)
    of_led = {event.kind for seed in seeds if is_led(seed) for event in drawn(seed)}
    of_drops = {event.kind for seed in seeds if has_drops(seed) for event in drawn(seed)}

    assert {Kind.LEAVE, Kind.DEPART, Kind.ROT_ROW} <= of_led
    assert {Kind.DROP, Kind.ROT_BENEATH} <= of_drops
