"""The groups of mutated modules and their tests."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.mutants.suite import OWN_BUDGET_S, ROOT, files_of


@dataclass(frozen=True, slots=True)
class Group:
    """A group of modules, and the folders or files with their tests.

    A test file outside of `tests` is included if it imports one of the group's modules. The files
    in `shared`, or below a folder in it, contain tests of several modules. They count as named
    after each of these modules. All tests that are named after a module together have the CPU time
    `own_budget_s`.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    package: str
    shared: tuple[str, ...] = ()
    own_budget_s: float = OWN_BUDGET_S

    def paths(self) -> list[str]:
        """Return the module paths, relative to the repository root, without `__init__.py`."""
        found: set[str] = set()
        for pattern in self.modules:
            found |= {str(file.relative_to(ROOT)) for file in ROOT.glob(pattern)}
        return sorted(path for path in found if not path.endswith("__init__.py"))

    def test_files(self) -> list[str]:
        """Return the test files of the group, and the property tests that import it."""
        imports = re.compile(
            "|".join(
                rf"^(from|import) {re.escape(path.removesuffix('.py').replace('/', '.'))}\b"
                for path in self.paths()
            ),
            re.MULTILINE,
        )
        laws = [
            file
            for file in files_of(("tests/property",))
            if file not in SERVED and imports.search((ROOT / file).read_text())
        ]
        named = [test for test in self.tests if test.endswith(".py")]
        folders = [test for test in self.tests if not test.endswith(".py")]
        return sorted({*files_of(folders), *named, *laws})


SERVED = ("tests/property/test_ozone_orders.py",)
"""Tests that start a gRPC server. They are excluded, because such a server does not answer in a
forked process."""

JUDGE_LAW = "tests/property/test_judge_reference.py"
ASKED_BY_SCM = (
    *("tests/unit/health/test_replication.py", "tests/unit/health/test_shards.py"),
    *("tests/unit/health/test_rule_vectors.py", "tests/unit/health/plan/test_copied_in_doubt.py"),
    "tests/unit/scm/administration/test_decommission_rules.py",
)
"""Tests of the judge for rules that were formerly implemented in the control plane."""

SCM_RULES = (
    *(
        "container_context",
        "close_rules",
        "copy_targets",
    ),
    *(
        "decommission_rules",
        "lifecycle",
        "empty_container_rules",
        "eligibility",
        "command_limits",
        "loads",
    ),
    *("balance_moves", "allocate", "plan_check", "nodes", "safemode"),
)
SCANNER_RULES = (
    *("rows/uniform_chunks", "scan_tree"),
    *(
        "chunk_verdict",
        "forensics",
        "breaker",
        "schedule",
        "scan_rate_control",
        "finding",
        "resume",
    ),
    *("rows/spans", "failure_window", "finding_collector", "rows/small_blocks", "replica_scan"),
    *("scan_outcome", "unreadable_verdict"),
)

GROUPS = (
    Group("merkle", ("merkle/*.py",), ("tests/unit/merkle",), "merkle"),
    Group(
        "scanner",
        tuple(f"scanner/{name}.py" for name in SCANNER_RULES),
        (
            "tests/unit/scanner",
            "tests/property/test_scan_promise.py",
            "tests/property/test_alike_chunks.py",
        ),
        "scanner",
    ),
    Group(
        "plan",
        ("agent/plan/*.py",),
        ("tests/unit/agent/plan", "tests/unit/agent/cli/test_outcome_rows.py"),
        "plan",
    ),
    Group(
        "tasks",
        ("agent/commands/command_queue.py",),
        (
            *(
                "tests/unit/agent/commands/test_command_queue.py",
                "tests/unit/agent/commands/test_pool.py",
            ),
            "tests/unit/agent/commands/test_queue_order.py",
        ),
        "runtime",
    ),
    Group(
        "health",
        ("health/*.py", "health/plan/*.py"),
        ("tests/unit/health", *ASKED_BY_SCM, JUDGE_LAW),
        "health",
        shared=("tests/unit/health/", JUDGE_LAW),
        own_budget_s=4 * OWN_BUDGET_S,  # each of them calls every module
    ),
    Group(
        "scm",
        tuple(f"scm/**/{name}.py" for name in SCM_RULES),
        ("tests/unit/scm", *ASKED_BY_SCM),
        "scm",
    ),
)


def chosen(names: Iterable[str]) -> list[tuple[Group, list[str]]]:
    """Return the groups and modules that these names select; all if there are no names.

    A name is a group, or a module such as `merkle.diff`, `merkle/diff.py` or `diff`. Raise
    LookupError for any other name.
    """
    wanted: dict[str, set[str]] = {}
    for name in names:
        hits = [
            (group.name, path)
            for group in GROUPS
            for path in group.paths()
            if name in (group.name, path, path.removesuffix(".py").replace("/", "."))
            or path.endswith(f"/{name}.py")
        ]
        if not hits:
            known = ", ".join(group.name for group in GROUPS)
            raise LookupError(
                f"unknown: {name}; known: {known}, invariants, or one of their modules"
            )
        for group_name, path in hits:
            wanted.setdefault(group_name, set()).add(path)
    return [
        (group, sorted(wanted[group.name]) if wanted else group.paths())
        for group in GROUPS
        if not wanted or group.name in wanted
    ]
