"""Selects and runs the tests of a module on its mutants.

A parent process (the zygote) has imported all slow modules. It forks three kinds of processes:

1. A collected session imports every test file without running a test. It forks one process per test
   file, to record which functions each test calls and how long it takes.
2. The collected session also forks one process per mutant. It puts the new code into existing
   functions (`__code__`) and runs the tests. Therefore it does not matter which module imported or
   wrapped a function.
3. For some mutants, the zygote forks a process that imports everything with the mutant. These are
   changes of constants, defaults and classes. They are also mutants of functions called during an
   import, for the test files that keep results of the unchanged function.
"""

import ast
import cProfile
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tools.mutants import child
from tools.mutants.mutation import Change, Mutant, changes, mutated

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("agent", "health", "merkle", "ozone", "scanner", "scm", "spark_verify", "suture")
OWN_BUDGET_S = 2.0
"""Limit on the CPU time of the tests that are named after a module, in seconds per mutant. The
fastest tests run first."""
FOREIGN_BUDGET_S = 0.5
"""Limit on the CPU time of other tests that call the changed function, in seconds per mutant. The
fastest tests run first."""
IMPORT_FILES_MAX = 3
"""Maximum number of test files for a mutant for which everything must be imported."""
TEST_GRACE_CPU_S = 2.0
TEST_SLOWER = 6
"""A test counts as hanging if it takes this many times its earlier duration."""

Place = tuple[str, str]
"""A function: path and qualified name."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The functions that one test calls, and the CPU time of the test."""

    test: str
    cpu_s: float
    places: frozenset[Place]
    outcome: str


@dataclass(slots=True)
class Imports:
    """The product's functions that are called during imports: of the modules that test files
    import, and of each test file."""

    shared: frozenset[Place] = frozenset()
    by_file: dict[str, frozenset[Place]] = field(default_factory=dict)

    def spare(self, place: Place, file: str) -> bool:
        """Return True if the function `place` is not called during the imports of a test file. Then
        a mutant of the function needs no new import for this file."""
        return place not in self.shared and place not in self.by_file.get(file, frozenset())


@dataclass(slots=True)
class Knowledge:
    """Facts about the tests: one entry per test, and the functions that only imports call.

    `asked` has the functions whose mutants are first tried by replacing code in loaded functions.
    """

    tests: dict[str, Seen] = field(default_factory=dict)
    imports: Imports = field(default_factory=Imports)
    asked: set[Place] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of testing a mutant: `outcome` is "killed", "timed out" or "survived"; `killer` is
    the test that failed; `tests` is the number of tests that ran."""

    outcome: str
    killer: str = ""
    tests: int = 0


def arguments(scratch: Path) -> list[str]:
    """Return the pytest options that make a run repeatable and create no files."""
    return [
        "-q",
        "--capture=no",
        "--no-header",
        "--tb=native",  # failures are not read, and rendering them takes longer than this
        f"--rootdir={ROOT}",
        f"--basetemp={scratch}",
        "-pno:cacheprovider",
        "-ofaulthandler_timeout=0",
        "-Wignore::pytest.PytestAssertRewriteWarning",
    ]


def steady() -> None:
    """Make hypothesis try the same examples every time, without shrinking failures."""
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES_MAX,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=HEALTH_CHECKS,
    )
    settings.load_profile("mutants")


def shorten(items: Sequence[pytest.Item]) -> None:
    """Reduce the number of examples of property tests. There are thousands of mutants, and most
    fail the first example."""
    for item in items:
        function = getattr(item, "function", None)
        function = getattr(function, "__func__", function)
        asked = getattr(function, SETTINGS_OF, None)
        if asked is not None:
            few = min(asked.max_examples, EXAMPLES_MAX)
            shorter = settings(asked, max_examples=few, suppress_health_check=HEALTH_CHECKS)
            setattr(function, SETTINGS_OF, shorter)


JUDGED_CONTAINERS = 500
"""Number of containers in the seeded cluster with which the judge is compared with its reference.
Normal test runs use thousands. All health states occur in this smaller cluster, too."""
SETTINGS_OF = "_hypothesis_internal_use_settings"
EXAMPLES_MAX = 50
HEALTH_CHECKS = tuple(HealthCheck)
"""All health checks are off, because a property test that is slow on a busy machine has not
detected a mutant."""


def place_of(code: types.CodeType) -> Place | None:
    """Return the function of the product to which a code object belongs; None if it is not the
    product's."""
    file = code.co_filename
    if not file.startswith(ROOT_PREFIX):
        return None
    path = file[len(ROOT_PREFIX) :]
    if not path.startswith(PRODUCT_PREFIXES):
        return None
    return path, code.co_qualname.split(".<locals>")[0]


ROOT_PREFIX = f"{ROOT}/"
PRODUCT_PREFIXES = tuple(f"{name}/" for name in PRODUCT)


def calls_during(work: Callable[[], Any]) -> tuple[Any, frozenset[Place]]:
    """Return the result of `work`, and the product's functions that it called."""
    profile = cProfile.Profile(builtins=False)
    result = profile.runcall(work)
    return result, places_in(profile)


def places_in(profile: cProfile.Profile) -> frozenset[Place]:
    """Return the product's functions in a profile."""
    codes = [entry.code for entry in profile.getstats()]
    places = (place_of(code) for code in codes if isinstance(code, types.CodeType))
    return frozenset(place for place in places if place is not None)


Work = Callable[[list[pytest.Item], Imports], Any]


class Collected:
    """A pytest session that stops after the collection, and runs `work` instead of the tests."""

    def __init__(self, files: Sequence[str], work: Work) -> None:
        self._files = files
        self._work = work
        self.result: Any = None
        self._imports = Imports()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Import the modules that the test files import, before the test files. Then the calls
        during the import of a test file are its own calls."""
        names = sorted({name for file in self._files for name in imported_by(file)})
        _, self._imports.shared = calls_during(lambda: [import_module(name) for name in names])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Record which functions are called while a test file is imported."""
        profile = cProfile.Profile(builtins=False)
        profile.enable()
        try:
            return (yield)
        finally:
            profile.disable()
            file, by_file = collector.nodeid.split("::")[0], self._imports.by_file
            by_file[file] = by_file.get(file, frozenset()) | places_in(profile)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the work instead of the tests."""
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors while collecting")
        shorten(session.items)
        self.result = self._work(session.items, self._imports)
        return True


def imported_by(file: str) -> Iterator[str]:
    """Yield the product's modules, and the tests' support modules, that a test file imports."""
    for node in ast.walk(ast.parse((ROOT / file.split("::")[0]).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        yield from (name for name in names if name.startswith((*PACKAGES, "tests.support.")))


PACKAGES = tuple(f"{name}." for name in PRODUCT)


def in_session(files: Sequence[str], scratch: Path, work: Work) -> Any:
    """Collect test files in this process, and return the result of `work` on the tests. Raise
    RuntimeError if the tests cannot be collected."""
    steady()
    plugin = Collected(files, work)
    code = pytest.main([*arguments(scratch), *files], plugins=[plugin])
    if plugin.result is None:
        raise RuntimeError(f"the tests cannot be collected (pytest ended with {code})")
    return plugin.result


def run_tests(items: Sequence[pytest.Item], times_s: dict[str, float]) -> Verdict:
    """Run tests until one fails. The time limit of each is based on its earlier duration."""
    for number, item in enumerate(items):
        child.limit_time(TEST_GRACE_CPU_S + TEST_SLOWER * times_s[item.nodeid])
        following = items[number + 1] if number + 1 < len(items) else None
        reports = reports_of(item, following)
        if any(report.failed for report in reports):
            return Verdict("killed", item.nodeid, number + 1)
    return Verdict("survived", tests=len(items))


def reports_of(item: pytest.Item, following: pytest.Item | None) -> list[pytest.TestReport]:
    """Run one test with its setup and teardown; return the reports."""
    from _pytest.runner import runtestprotocol

    random.seed(0)
    return runtestprotocol(item, log=False, nextitem=following)


def look(items: Sequence[pytest.Item]) -> list[Seen]:
    """Run tests in this process; return the calls and the CPU time of each."""
    seen: list[Seen] = []
    for number, item in enumerate(items):
        following = items[number + 1] if number + 1 < len(items) else None
        begun = time.process_time()
        reports, places = calls_during(partial(reports_of, item, following))
        outcome = "failed" if any(report.failed for report in reports) else "passed"
        if outcome == "passed" and any(report.skipped for report in reports):
            outcome = "skipped"
        seen.append(Seen(item.nodeid, time.process_time() - begun, places, outcome))
    return seen


def functions_loaded() -> list[types.FunctionType]:
    """Return all loaded functions of the product, including wrapped ones. Freeze the heap
    afterwards."""
    gc.unfreeze()  # objects frozen by tests/conftest.py would not be listed
    gc.collect()
    found = [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, types.FunctionType) and place_of(thing.__code__) is not None
    ]
    gc.freeze()  # a garbage collection in a forked process would copy every page
    return found


def new_code(mutant: Mutant, source: str, functions: Sequence[types.FunctionType]) -> None:
    """Put the code of a mutant into the functions of this process.

    The process must end after the trial, because the change is made in the tree that `prepared`
    caches.
    """
    file = str(ROOT / mutant.path)
    tree, found = prepared(file, source)
    found[mutant.index].make()
    name = mutant.place.split(".")[0]
    around = [node for node in tree.body if getattr(node, "name", name) == name]
    module = ast.fix_missing_locations(ast.Module(around, tree.type_ignores))
    code_of_all = compile(module, file, "exec")
    codes = [
        code for code in codes_in(code_of_all) if place_of(code) == (mutant.path, mutant.place)
    ]
    replaced = 0
    for code in codes:
        for function in functions:
            old = function.__code__
            if old.co_filename != file:
                continue
            same = (old.co_qualname, old.co_firstlineno) == (code.co_qualname, code.co_firstlineno)
            if same and old.co_freevars == code.co_freevars:
                function.__code__ = code
                replaced += 1
    if not replaced:
        raise LookupError(f"no function {mutant.place} of {mutant.path} is loaded")


@cache
def prepared(file: str, source: str) -> tuple[ast.Module, list[Change]]:
    """Return the tree of a module and its changes. The result is cached in the forking process."""
    tree = ast.parse(source, file)
    return tree, changes(tree)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of every function and class in a module, except those inside functions."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            if not constant.co_flags & 0x2:  # a class: its body has no fast locals
                yield from codes_in(constant)


class ImportMutant(importlib.abc.MetaPathFinder):
    """Import hook that imports one module with a change."""

    def __init__(self, mutant: Mutant, source: str) -> None:
        self._mutant = mutant
        self._source = source
        self._name = mutant.path.removesuffix(".py").replace("/", ".")

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  the protocol's name
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the changed module."""
        if fullname != self._name:
            return None
        file = str(ROOT / self._mutant.path)
        loader = ChangedLoader(fullname, file)
        loader.change = (self._mutant, self._source)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


class ChangedLoader(importlib.machinery.SourceFileLoader):
    """Loader that compiles the changed tree instead of the file, without a bytecode cache."""

    change: tuple[Mutant, str]

    def get_code(self, fullname: str) -> types.CodeType:  # noqa: ARG002
        """Return the changed module's code."""
        mutant, source = self.change
        return compile(mutated(self.path, source, mutant.index), self.path, "exec")


def checksum(*texts: str) -> str:
    """Return a short checksum of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def chosen_tests(
    mutant: Mutant,
    known: Knowledge,
    package: str,
    *,
    shared: Sequence[str] = (),
    own_budget_s: float = OWN_BUDGET_S,
) -> list[Seen]:
    """Return the tests to run for a mutant within the time budget. Those of its module come first.

    `shared` are test files or folders that count as named after every module.
    """
    stem = Path(mutant.path).stem
    place = (mutant.path, mutant.place)
    is_import = not mutant.is_in_function or place in known.imports.shared
    called = [
        seen
        for seen in known.tests.values()
        if place in seen.places
        or place in known.imports.by_file.get(seen.test.split("::")[0], ())
        or (is_import and stem in Path(seen.test.split("::")[0]).stem)
        or (is_import and any(path == mutant.path for path, _ in seen.places))
    ]
    by_rank: dict[int, list[Seen]] = {0: [], 1: [], 2: []}
    for seen in sorted(called, key=lambda seen: (seen.cpu_s, seen.test)):
        is_shared = seen.test.startswith(tuple(shared))
        by_rank[0 if is_shared else rank(seen.test, stem, package)].append(seen)
    result: list[Seen] = []
    for ranks, left_s in (((0,), own_budget_s), ((1, 2), FOREIGN_BUDGET_S)):
        for seen in (seen for number in ranks for seen in by_rank[number]):
            left_s -= seen.cpu_s
            if left_s >= 0 or not result:
                result.append(seen)
    if is_import:
        files = list(dict.fromkeys(seen.test.split("::")[0] for seen in result))
        files.sort(key=lambda file: stem not in Path(file).stem)  # the module's own first
        kept = files[:IMPORT_FILES_MAX]
        result = [seen for seen in result if seen.test.split("::")[0] in kept]
    return result


def rank(test: str, stem: str, package: str) -> int:
    """Return 0 if a test file is named after a module, 1 if it is in the folder of the module's
    package, otherwise 2."""
    file = test.split("::")[0]
    if stem in Path(file).stem:
        return 0
    return 1 if f"/{package}/" in file else 2


def files_of(folders: Sequence[str]) -> list[str]:
    """Return the test files below folders, as paths from the repository root."""
    return sorted(
        str(file.relative_to(ROOT))
        for folder in folders
        for file in (ROOT / folder).rglob("test_*.py")
    )


def preload() -> None:
    """Import slow third-party modules, so that each fork has them."""
    for name in THIRD_PARTY:
        __import__(name)
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.devnull)
    os.environ.setdefault("SUTURE_JUDGED_CONTAINERS", str(JUDGED_CONTAINERS))


THIRD_PARTY = (
    *("numpy", "xxhash", "crc32c", "crcmod", "awscrt.checksums", "lmdb", "zstandard", "yaml"),
    *("google.protobuf.message", "grpc", "grpc_status.rpc_status", "pydantic", "structlog"),
    *("typer", "rich.console", "tenacity", "prometheus_client", "_pytest.runner"),
    *("hypothesis.stateful", "hypothesis.extra.numpy", "unittest.case"),
    *("pandas", "pyarrow.pandas_compat"),  # pyarrow imports them when it creates its first table
)
