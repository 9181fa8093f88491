"""The numbers that an operator may choose."""

from health.rules import Rules


def test_default_rules_have_ozones_numbers() -> None:
    """Two whole copies, or one shard more than data, stay online during maintenance. Three
    copies of the origin with the last commit and two of another are kept. There is no band, and
    one rack.
    """
    rules = Rules()

    assert (2, 1) == (rules.maintenance_min, rules.ec_redundancy)
    assert (3, 2) == (rules.best_origin_copies, rules.other_origin_copies)
    assert (0, 0) == (rules.enough_copies, rules.most_copies)
    assert 1 == rules.rack_count
