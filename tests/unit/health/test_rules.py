"""The numbers that an operator may choose."""

from health.rules import Rules


def test_who_chooses_nothing_has_ozones_numbers() -> None:
    """
    Two whole copies, or one shard more than data, stay online during maintenance; three copies of
    the origin with the last commit, two of another; no band; one rack.
    """
    rules = Rules()

    assert (2, 1) == (rules.maintenance_min, rules.ec_redundancy)
    assert (3, 2) == (rules.best_origin_copies, rules.other_origin_copies)
    assert (0, 0) == (rules.enough_copies, rules.most_copies)
    assert 1 == rules.rack_count
