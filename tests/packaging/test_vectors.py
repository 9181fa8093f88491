"""Every published vector of the replication manager is a test's, by its name."""

import re
from pathlib import Path

from tests.support.verification.vectors import vectors

TESTS = Path(__file__).resolve().parents[1]
GIVEN = (
    "W1 W2 W4 W5 W7 W8 W10 W11 W13 W14 W16 W17 W19 W20 W22 W23 W25 W26 W28 W29 W31 W32 W34 W35 W37 "
    "W38 W40 W41 W43 W44 W46 W47 W49 W50 W52 W53 W55 W56 W58 W59 W61 W62 W64 W65 W67"
)


def test_every_vector_is_named_by_a_test() -> None:
    """A test names each vector as `test_w19_...` or as the first word of a row of `tests/`."""
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        named |= {f"W{number}" for number in re.findall(r"def test_w(\d+)_", text)}
        named |= set(re.findall(r'"(W\d+)\b', text))
        named |= set(re.findall(r"# (W\d+)\b", text))

    assert [] == [vector for vector in GIVEN.split() if vector not in named]


OF_HEALTH = (
    "V1 V2 V4 V5 V7 V8 V10 V11 V13 V14 V16 V17 V19 V20 V22 V23 V25 V26 V28 V29 V31 V32 V34 V35 V37 "
    "V38 V40 V41 V43 V44 V46 V47 V49 V50 V52 V53 V55 V56 V58 V59 V61 V62 V64 V65 V67 V68 V70 V71 "
    "V73 V74 V76 V77 V79 V80 V82 V83 "
    "W1 W2 W4 W5 W7 W8 W10 W11 W13 W14 W16 W17 W19 W20 W22 W23 W25 W26 W28 W29 W31 W32 W34 W35 W37 "
    "W38 W40 W55 W56 W58 W59 W61 W64 W65 W67 "
    "X1 X2 X3 X4 X5 X6 X7 X8 X9 X10 X11 X12 X13 "
    "S2.42 S2.43 S2.44 S2.45 S2.46 S2.47 S2.48 S2.49 S2.50 S2.51 S2.52 S2.53 S2.54 S2.55 S2.56 "
    "S2.57 S2.57b S2.58 "
    "S1.29 S1.30 S1.31 S1.33 S1.34 S1.35 S1.36 S1.37 S1.38"
)
"""Those that say how a container is, whatever is then done about it."""

NOT_LIVE = 9
"""Rows that no control plane can show; each says why."""


def test_every_vector_of_health_is_in_the_table() -> None:
    """The judge, the Spark job and a control plane are asked all of them."""
    table = vectors()

    named = {vector.name.partition(" ")[0] for vector in table}

    assert [] == [vector for vector in OF_HEALTH.split() if vector not in named]
    assert NOT_LIVE == sum(not vector.is_live for vector in table)
