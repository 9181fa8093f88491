"""What Prometheus sees of the lock of the control plane: each hold once, under its bound."""

from concurrent.futures import ThreadPoolExecutor

from prometheus_client import generate_latest

from scm.api.metrics import COUNTED_TOGETHER, LOCK_BOUNDS_S, ScmMetrics

HELD = "suture_scm_lock_held_seconds"
SPENT = "suture_scm_lock_cpu_seconds"


def sample(meters: ScmMetrics, name: str) -> float:
    """Return a sample of a scrape, by its name with labels."""
    lines = generate_latest(meters.registry).decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])


def test_a_hold_counts_under_each_bound_that_it_does_not_pass() -> None:
    """
    A bound belongs to what is below it; what is longer than all of them is counted all the same.
    """
    meters = ScmMetrics()
    for held_s, spent_s in ((0.001, 0.0005), (0.002, 0.001), (0.3, 0.0), (60.0, 5.0)):
        meters.lock_held(held_s, spent_s)

    under = {bound: sample(meters, f'{HELD}_bucket{{le="{bound}"}}') for bound in LOCK_BOUNDS_S}
    assert {0.001: 1, 0.005: 2, 0.01: 2, 0.25: 2, 0.5: 3, 5.0: 3} == {
        bound: under[bound] for bound in (0.001, 0.005, 0.01, 0.25, 0.5, 5.0)
    }
    assert 4 == sample(meters, f'{HELD}_bucket{{le="+Inf"}}') == sample(meters, f"{HELD}_count")
    assert 0.001 + 0.002 + 0.3 + 60.0 == sample(meters, f"{HELD}_sum")
    assert 3 == sample(meters, f'{SPENT}_bucket{{le="0.001"}}')
    assert 4 == sample(meters, f'{SPENT}_bucket{{le="5.0"}}') == sample(meters, f"{SPENT}_count")


def test_holds_of_many_threads_are_all_counted_and_few_are_kept() -> None:
    """Holds that arrive while others are counted are counted as well."""
    meters = ScmMetrics()
    count = 5 * COUNTED_TOGETHER + 3

    def hold(_thread: int) -> None:
        for _ in range(count):
            meters.lock_held(0.002, 0.001)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(hold, range(4)))
    assert COUNTED_TOGETHER > len(meters.lock_holds.not_counted)
    assert 4 * count == sample(meters, f"{HELD}_count")
    assert not meters.lock_holds.not_counted
