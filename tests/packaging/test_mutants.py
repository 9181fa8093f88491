"""The tool that changes the code to see whether a test notices: it changes what it says it does."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from merkle.replica import ChecksumType, ChunkInfo
from scanner.rows import spans
from tools.mutants import child, suite
from tools.mutants.groups import GROUPS, chosen
from tools.mutants.invariants import checks_in
from tools.mutants.mutation import mutants_of, mutated
from tools.mutants.report import BOUND_PERCENT, UNEXPLAINED, Record, percent
from tools.mutants.verdicts import content_for

CHUNK = ChunkInfo(0, 10, ChecksumType.NONE, 1, b"")
ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''
LIMIT = 5

def refuse(size: int, is_open: bool = False) -> str:
    """Docstring."""
    if size < LIMIT and not is_open:
        raise ValueError(size)
    log.append(size)
    return max(size, 1)
'''


def result_of(source: ast.Module, *arguments: object) -> object:
    """Return what the sample's function does: its result, its error, or what it logged."""
    log: list[object] = []
    names: dict[str, object] = {"log": log}
    exec(compile(source, "sample", "exec"), names)  # noqa: S102  the sample above
    refuse = names["refuse"]
    assert isinstance(refuse, Callable)  # type: ignore[arg-type]
    try:
        return refuse(*arguments), log  # type: ignore[operator]
    except ValueError:
        return "refused"


class TestChanges:
    def test_every_change_is_listed_once(self) -> None:
        """
        By function, and outside of functions what is evaluated when the module is imported.
        """
        keys = [mutant.key for mutant in mutants_of("sample.py", SOURCE)]

        assert [
            "<module>: 5 -> 6",
            "<module> refuse: False -> True",
            "refuse: size < LIMIT and (not is_open) -> False",
            "refuse: size < LIMIT and (not is_open) -> True",
            "refuse: size < LIMIT and (not is_open) -> size < LIMIT or not is_open",
            "refuse: size < LIMIT and (not is_open) -> not is_open",
            "refuse: size < LIMIT and (not is_open) -> size < LIMIT",
            "refuse: size < LIMIT -> size <= LIMIT",
            "refuse: size < LIMIT -> size >= LIMIT",
            "refuse: not is_open -> is_open",
            "refuse: raise ValueError(size) -> nothing",
            "refuse: log.append(size) -> nothing",
            "refuse: max(size, 1) -> None",
            "refuse: max(size, 1) -> min(size, 1)",
            "refuse: 1 -> 2",
        ] == keys

    @pytest.mark.parametrize(
        ("key", "arguments", "before", "after"),
        [
            ("<module>: 5 -> 6", (5,), (5, [5]), "refused"),
            ("<module> refuse: False -> True", (3,), "refused", (3, [3])),
            ("refuse: size < LIMIT -> size <= LIMIT", (5,), (5, [5]), "refused"),
            ("refuse: raise ValueError(size) -> nothing", (3,), "refused", (3, [3])),
            ("refuse: log.append(size) -> nothing", (7,), (7, [7]), (7, [])),
            ("refuse: max(size, 1) -> None", (7,), (7, [7]), (None, [7])),
        ],
    )
    def test_a_change_does_what_it_says(
        self, key: str, arguments: tuple[object, ...], before: object, after: object
    ) -> None:
        """A mutant differs from its module in one place only."""
        [mutant] = [each for each in mutants_of("sample.py", SOURCE) if each.key == key]

        assert before == result_of(ast.parse(SOURCE), *arguments)
        assert after == result_of(mutated("sample.py", SOURCE, mutant.index), *arguments)

    def test_every_change_of_a_module_compiles(self) -> None:
        """A mutant that does not compile would count as killed without any test."""
        path = "scanner/rows/spans.py"
        source = (ROOT / path).read_text()

        for mutant in mutants_of(path, source):
            compile(mutated(path, source, mutant.index), path, "exec")


class TestGuards:
    LONG = " or ".join(f"self.something_that_is_asked_for_number_{n}()" for n in range(1, 5))
    SAMPLE = f"""
def one(size):
    if size > 3:
        raise ValueError(size)
    return size + 1

def two(self):
    return not ({LONG})

def three(row):
    return row + 1
"""

    def test_checks_are_taken_out_the_surest_first(self) -> None:
        """
        The condition, then what it guards, then its bounds.
        """
        found = [each.key for each in checks_in("sample.py", self.SAMPLE, "one")]

        assert "one: size > 3 -> False" == found[0]
        assert "one: raise ValueError(size) -> nothing" == found[1]
        assert "one: size + 1 -> size - 1" not in found

    def test_mutants_remove_every_part_of_a_long_condition(self) -> None:
        """This includes a change that is too long to be shown whole."""
        found = checks_in("sample.py", self.SAMPLE, "two")

        left = {
            ast.unparse(mutated("sample.py", self.SAMPLE, each.index)).count("asked_for")
            for each in found
        }
        assert 3 in left
        assert 4 <= sum(each.before.endswith("...") for each in found)

    def test_mutants_change_arithmetic(self) -> None:
        """A generation counter is a guard, too."""
        found = [each.key for each in checks_in("sample.py", self.SAMPLE, "three")]

        assert "three: row + 1 -> row - 1" in found


class TestTrials:
    def test_a_change_is_seen_where_it_was_made_and_nowhere_else(self) -> None:
        """
        The forked process runs the new code under the names that were imported long ago.
        """
        path = "scanner/rows/spans.py"
        source = (ROOT / path).read_text()
        mutant = next(
            each
            for each in mutants_of(path, source)
            if each.place == "spans_of" and each.after == "()"
        )

        def trial() -> object:
            suite.new_code(mutant, source, [spans.spans_of])
            return list(spans.spans_of([CHUNK], length_bytes_max=1))

        assert [] == child.run(trial).result
        assert [[CHUNK]] == list(spans.spans_of([CHUNK], length_bytes_max=1))

    def test_endless_trial_is_stopped(self) -> None:
        """A loop without an end costs its time limit and no more."""

        def trial() -> None:
            child.limit_time(0.05)
            while True:
                pass

        assert child.run(trial).timed_out

    def test_uncaught_error_of_a_trial_is_returned_as_text(self) -> None:
        """The error ends the child process."""

        def trial() -> None:
            raise OSError("no such thing")

        assert "no such thing" in child.run(trial).fault

    def test_a_verdict_rests_on_the_test_that_gave_it(self, tmp_path: Path) -> None:
        """
        Another test in its file changes nothing; the test itself, or what it uses, does.
        """
        text = "LIMIT = 1\n\ndef test_one():\n    assert LIMIT\n\ndef test_two():\n    pass\n"

        def rests_on(number: int, content: str) -> str:
            file = tmp_path / f"test_{number}.py"
            file.write_text(content)
            return content_for(str(file), "test_one")

        before = rests_on(1, text)
        assert before == rests_on(2, text.replace("pass", "raise ValueError"))
        assert before != rests_on(3, text.replace("= 1", "= 2"))
        assert before != rests_on(4, text.replace("assert LIMIT", "assert not LIMIT"))

    def test_a_function_that_made_a_table_is_tried_by_importing(self) -> None:
        """This holds if a test file called it during its import, or if a module that all import
        did.
        """
        one, other = ("merkle/tree.py", "build"), ("merkle/tree.py", "bury")
        imports = suite.Imports(frozenset({other}), {"tests/a.py": frozenset({one})})

        assert not imports.spare(one, "tests/a.py")
        assert imports.spare(one, "tests/b.py")
        assert not imports.spare(other, "tests/b.py")


def test_every_pattern_of_a_group_finds_a_module() -> None:
    """Otherwise a renamed module would no longer be tried, and nobody would notice."""
    lost = [text for group in GROUPS for text in group.modules if not list(ROOT.glob(text))]

    assert [] == lost


class TestResult:
    def test_every_module_is_well_tested(self) -> None:
        """Nine of ten mutants of each module in the results are killed, and the module still
        exists.
        """
        counts = Record.load().counts

        assert set() == counts.keys() - {path for group in GROUPS for path in group.paths()}
        assert [] == [path for path, (_, each) in counts.items() if percent(each) < BOUND_PERCENT]

    def test_every_survivor_has_a_reason(self) -> None:
        """Every survivor that the table counts has a reason."""
        record = Record.load()
        listed = [path for path, _ in record.reasons]

        assert UNEXPLAINED not in record.reasons.values()
        assert {path: listed.count(path) for path in record.counts} == {
            path: survived for path, (_, (_, _, survived)) in record.counts.items()
        }

    def test_an_unknown_name_is_refused(self) -> None:
        """
        With what is known.
        """
        with pytest.raises(LookupError, match="unknown: nothing; known: merkle"):
            chosen(["nothing"])
