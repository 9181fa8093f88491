"""Every published vector of the replication manager is a test's, by its name."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
GIVEN = (
    "W1 W2 W4 W5 W7 W8 W10 W11 W13 W14 W16 W17 W19 W20 W22 W23 W25 W26 W28 W29 W31 W32 W34 W35 W37 "
    "W38 W40 W41 W43 W44 W46 W47 W49 W50 W52 W53 W55 W56 W58 W59 W61 W62 W64 W65 W67"
)


def test_every_vector_is_named_by_a_test() -> None:
    """
    As `test_w19_...`, or as the first word of a row or a docstring of `tests/`.
    """
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        named |= {f"W{number}" for number in re.findall(r"def test_w(\d+)_", text)}
        named |= set(re.findall(r'"(W\d+)\b', text))
        named |= set(re.findall(r"# (W\d+)\b", text))

    assert [] == [vector for vector in GIVEN.split() if vector not in named]
