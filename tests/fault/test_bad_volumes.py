"""One bad volume of four never takes the host down: a sample of `make bench NAME=badvolumes`.

Each case damages one volume of a real agent, in another way at another place, at rest or while it
is in use. The three others serve what was acknowledged on them, and the bad one is named.
"""

import random
from collections.abc import Iterator

import pytest

from tests.support.faults.bad_volumes import SERVED_MAX_S, FourVolumes, Outcome
from tests.support.faults.eio_disk import why_not
from tests.support.faults.volume_faults import Case, Kind, Place, cases
from tests.support.storage.stores import private_directory

pytestmark = [pytest.mark.fault, pytest.mark.slow]

ALL = 98  # each kind at each place, at rest and in use
SAMPLE = 5
SEED = 7
DEEP_CUT = 8  # a seed that leaves a few pages: without the check each start dies of the rest


@pytest.fixture(scope="module")
def world() -> Iterator[FourVolumes]:
    """Return a datanode with four volumes: all cases share it."""
    with private_directory() as root, FourVolumes(root) as world:
        yield world
        assert world.read_all() >= len(world.template), "all that was acknowledged is there"


def check(outcome: Outcome) -> None:
    """Assert that it went as promised."""
    assert [] == outcome.faults, f"{outcome.case} at {outcome.where}: {outcome.end}"
    assert outcome.served_s < SERVED_MAX_S


def test_a_sample_of_faults(world: FourVolumes) -> None:
    """Chosen by a seed from all kinds and places."""
    every = list(cases(ALL, with_eio=False))
    for case in random.Random(SEED).sample(every, SAMPLE):
        check(world.run(case))


def test_an_index_that_is_cut_under_the_agent(world: FourVolumes) -> None:
    """The map gives SIGBUS; after one restart the others are served, and the log has both."""
    outcome = world.run(Case(DEEP_CUT, Kind.CUT, Place.INDEX, in_use=True))

    check(outcome)
    assert ("left out", 1) == (outcome.end, outcome.restarts)
    assert "Fatal Python error: Bus error" in world.log.read_text(errors="replace")


@pytest.mark.skipif(bool(why_not()), reason=f"no disk here can give EIO: {why_not()}")
@pytest.mark.parametrize("place", [Place.INDEX, Place.VERSION])
@pytest.mark.parametrize("in_use", [False, True])
def test_sectors_that_cannot_be_read(world: FourVolumes, place: Place, in_use: bool) -> None:
    """Real EIO, of the kernel, on a real file system."""
    check(world.run(Case(3, Kind.EIO, place, in_use=in_use)))
