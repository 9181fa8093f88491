"""Rules of the house style: functions that take a tree of files and yield violations.

    Tree ── every file of the repository: path -> text
      Rule ── Tree -> sentences "path:line: what is wrong"

A rule reads only the given tree, so a test can plant a violation in a small tree.
"""

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TypeVar

from tests.support.packaging import language, messages
from tests.support.packaging.naming import (
    DECLARING,
    NAMING,
    named,
    quantities,
    synonyms,
    wrong_words,
)

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600  # a bound, not an aim: the style guide calls 200 to 400 lines a good size
PRODUCT_PACKAGES = (
    "agent",
    "health",
    "merkle",
    "ozone",
    "scanner",
    "scm",
    "spark_verify",
    "suture",
)
FACE = "suture/__init__.py"  # has the names for other programs; imports them on first use
GENERATED_FOLDER = "suture/wire/v1/"
BANNED_MODULES = frozenset({"utils", "helpers", "common", "misc", "base", "manager"})
SHARED_NAMES = frozenset(
    # the entry points of processes, and their options
    {"client", "clock", "commands", "errors", "exits", "main", "metrics", "options", "ports"}
    | {"printable", "server", "service", "start", "http_pages", "heartbeat", "leader", "wiring"}
    # the same thing, ours and Ozone's
    | {"blockrow", "database", "descriptor", "incoming", "layout", "messages", "outgoing"}
    | {"parts", "peer", "repair", "reports", "rows", "scm", "scrub", "tables", "trees", "damage"}
    # one action or thing: on the command line, on the wire, where it is decided, and where it is
    # done
    | {"anchoring", "anchors", "closing", "contradictions", "copies", "facts", "holds", "manifest"}
    | {"may_stop", "neighbours", "newblocks", "reading", "salvage", "sample", "trusting", "writing"}
)
"""Names that several modules may have, because the modules have the same purpose."""
MEASURED_WORDS = frozenset(
    {"age", "bandwidth", "delay", "duration", "interval", "latency"}
    | {"length", "period", "rate", "size", "speed", "timeout"}
)
UNIT_WORDS = frozenset({"bytes", "s", "ms", "us", "ns", "days"})
NUMBER = re.compile(r"(Final\[|ClassVar\[)?((int|float)( \| None)?|None \| (int|float))\]?")
BOUND_WORDS = frozenset({"max", "min", "default", "total"})
VOCABULARY = "docs/VOCABULARY.md"
PLAIN = re.compile(r"(int|float|str|bytes|bool|Path)( \| None)?")

CITATION = re.compile(r"\b(?:S\d\.\d+|[KWX]\d{1,2}|V\d{2})\b")
VECTORS = ("tests/golden/health/vectors.txt", "tests/packaging/test_vectors.py")
ENTRY_MODULES = frozenset({"__main__", "__init__"})
NAMED_BY_FOLDER = re.compile(r"(bench/[a-z]+/bench_|tests/.*(test_|conftest)|tools/)")


Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Tree:
    """The text files of a repository, by path from its root."""

    texts: Mapping[str, str]
    entry_points: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """Every Python file that is not generated, parsed."""
        return {
            path: ast.parse(text, path)
            for path, text in self.texts.items()
            if path.endswith(".py") and not path.startswith(GENERATED_FOLDER)
        }

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[tuple[str, ast.AST]]]:
        """All syntax nodes of all modules, each with its module's path, by kind of node. They are
        computed once for all rules."""
        found: dict[type[ast.AST], list[tuple[str, ast.AST]]] = {}
        for path, module in self.modules.items():
            for node in ast.walk(module):
                found.setdefault(type(node), []).append((path, node))
        return found

    def nodes(self, *kinds: type[Node]) -> Iterator[tuple[str, Node]]:
        """Yield every node of these kinds, with its module's path."""
        for kind in kinds:
            yield from self._by_kind.get(kind, ())  # type: ignore[misc]


Rule = Callable[[Tree], Iterator[str]]


def read_repository(root: Path) -> dict[str, str]:
    """Return the text of every file below `root` that .gitignore does not match.

    Git is not used, because a checkout may belong to another user, and an archive has no history.
    """
    lines = (root / ".gitignore").read_text().splitlines()
    ignored = [".git", *(line.rstrip("/") for line in lines if line and line[0] != "#")]
    texts: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        here = PurePosixPath(Path(folder).relative_to(root))
        folders[:] = [name for name in folders if not is_ignored(here / name, ignored)]
        for path in (here / name for name in files):
            with suppress(UnicodeDecodeError):  # a golden vector in bytes
                if not is_ignored(path, ignored):
                    texts[str(path)] = (root / path).read_text()
    return texts


def is_ignored(path: PurePosixPath, patterns: Sequence[str]) -> bool:
    """Return True if a pattern of .gitignore names the file or folder: by name, or by path."""
    return any(fnmatch(path.name, text) or fnmatch(str(path), text) for text in patterns)


def is_product(path: str) -> bool:
    """Return True if the file is shipped in the wheel."""
    return path.split("/", maxsplit=1)[0] in PRODUCT_PACKAGES


# --- shape ---------------------------------------------------------------------------------------


def functions_are_short(tree: Tree) -> Iterator[str]:
    """Yield functions that are too long. A function should fit on a screen."""
    for path, node in tree.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{path}:{node.lineno}: {node.name} has {lines} lines"


def files_are_short(tree: Tree) -> Iterator[str]:
    """Yield modules that are too long and should be split."""
    for path in tree.modules:
        lines = tree.texts[path].count("\n")
        if lines > FILE_LINES_MAX:
            yield f"{path}:1: {lines} lines"


def packages_are_docstrings(tree: Tree) -> Iterator[str]:
    """Yield `__init__.py` files that have more than a docstring. Otherwise, an import of the wire
    contract could import the daemon."""
    for path, text in tree.texts.items():
        if PurePosixPath(path).name != "__init__.py":
            continue
        module = ast.parse(text, path)
        imports = [one for one in module.body[1:] if imports_product(one)]
        if (imports if path == FACE else module.body[1:]) or ast.get_docstring(module) is None:
            yield f"{path}:1: holds something else than one docstring"


def imports_product(node: ast.stmt) -> bool:
    """Return whether a statement of a module imports a package of the product."""
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    return any(is_product(module.replace(".", "/")) for module in modules)


def proto_is_no_package(tree: Tree) -> Iterator[str]:
    """Yield Python files under proto/. They would shadow another distribution's package `proto`."""
    for path in tree.texts:
        if path.startswith("proto/") and path.endswith(".py"):
            yield f"{path}:1: Python under proto/"


def no_module_is_dead(tree: Tree) -> Iterator[str]:
    """Yield modules that nothing uses. Product code must be used by product code, support code by a
    test."""
    used = {path: names_used(path, module) for path, module in tree.modules.items()}
    for path in tree.modules:
        stem = PurePosixPath(path).stem
        if stem in ENTRY_MODULES or NAMED_BY_FOLDER.match(path):
            continue
        dotted = path.removesuffix(".py").replace("/", ".")
        if dotted in tree.entry_points:
            continue
        users = (
            names
            for user, names in used.items()
            if user != path and (is_product(user) or not is_product(path))
        )
        if not any(dotted in names for names in users):
            yield f"{path}:1: nothing imports it"


def names_used(path: str, module: ast.Module) -> set[str]:
    """Return every dotted name that a module imports or spells in a string (`-m agent.main`)."""
    package = path.split("/")[:-1]
    used: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*prefix, *([node.module] if node.module else [])])
            used.add(source)
            used.update(f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)
    return used


# --- names ---------------------------------------------------------------------------------------


def modules_are_nouns_of_the_domain(tree: Tree) -> Iterator[str]:
    """Yield modules with names such as utils, which do not describe a part of the domain."""
    for path in tree.texts:
        parts = PurePosixPath(path)
        if path.endswith((".py", ".proto")) and {*parts.parts[:-1], parts.stem} & BANNED_MODULES:
            yield f"{path}:1: says nothing about the domain"


def names_of_modules_mean_one_thing(tree: Tree) -> Iterator[str]:
    """Yield product modules that have the name of another product module, so that a name identifies
    one module. Names in `SHARED_NAMES` are permitted."""
    places: dict[str, list[str]] = {}
    for path in tree.modules:
        stem = PurePosixPath(path).stem
        if is_product(path) and stem not in ENTRY_MODULES | SHARED_NAMES:
            places.setdefault(stem, []).append(path)
    for paths in places.values():
        for path in sorted(paths)[1:]:
            yield f"{path}:1: has the name of {min(paths)}"


def quantities_end_in_their_unit(tree: Tree) -> Iterator[str]:
    """Yield names of sizes, times and rates that do not end in a unit. Without the unit, two people
    may read a value differently."""
    for path, node in tree.nodes(*DECLARING):
        for name, annotation, line in quantities(node):
            words = name.lower().strip("_").split("_")
            while len(words) > 1 and words[-1] in BOUND_WORDS:
                words.pop()
            if (
                NUMBER.fullmatch(annotation)
                and MEASURED_WORDS & set(words)
                and words[-1] not in UNIT_WORDS
            ):
                yield f"{path}:{line}: {name} does not end in its unit"


def things_have_one_name(tree: Tree) -> Iterator[str]:
    """Yield names that contain a forbidden synonym. docs/VOCABULARY.md defines one word for each
    thing."""
    words = synonyms(tree.texts.get(VOCABULARY, ""))
    for path, node in tree.nodes(*NAMING):
        for name, line in named(node):
            for word in wrong_words(name, words):
                yield f"{path}:{line}: {name}: say {words[word]}, not {word}"
    for path in tree.modules:
        for word in wrong_words(PurePosixPath(path).stem, words):
            yield f"{path}:1: say {words[word]}, not {word}"


def arguments_cannot_be_swapped(tree: Tree) -> Iterator[str]:
    """Yield functions with three adjacent positional arguments of the same plain type. A caller
    could swap two of them unnoticed. `(fd, offset, length)` is permitted, as in system calls."""
    for path, node in tree.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args]
        if not is_product(path) or [argument.arg for argument in arguments[:1]] == ["fd"]:
            continue
        types = [ast.unparse(argument.annotation or ast.Constant("")) for argument in arguments]
        for first, second, third in zip(types, types[1:], types[2:], strict=False):
            if first == second == third and PLAIN.fullmatch(first):
                yield f"{path}:{node.lineno}: {node.name} takes three {first} by their order"


# --- conduct -------------------------------------------------------------------------------------


def nothing_is_left_undone(tree: Tree) -> Iterator[str]:
    """Yield markers of unfinished work, and stubs. Committed code must be finished."""
    marker = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    for path, text in tree.texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if marker.search(line):
                yield f"{path}:{number}: {line.strip()}"
    for path, node in tree.nodes(ast.Raise):
        if "NotImplementedError" in ast.unparse(node):
            yield f"{path}:{node.lineno}: a stub"


def skips_have_reasons(tree: Tree) -> Iterator[str]:
    """Yield skips of tests without a reason."""
    skips = {"pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}
    explained: set[ast.expr] = set()
    for _, node in tree.nodes(ast.Call):
        if has_reason(node):
            explained.add(node.func)
    for path, node in tree.nodes(ast.Attribute):
        if node not in explained and node.attr in {"skip", "skipif", "xfail"}:
            name = ast.unparse(node)
            if name in skips:
                yield f"{path}:{node.lineno}: {name} without a reason"


def has_reason(call: ast.Call) -> bool:
    """Return True if a call passes a reason, by name or, for pytest's skips, as the first
    argument."""
    reasons = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    if not reasons and ast.unparse(call.func) in {"pytest.skip", "pytest.mark.skip"}:
        reasons = call.args[:1]
    return any(not isinstance(reason, ast.Constant) or bool(reason.value) for reason in reasons)


def no_path_of_one_machine(tree: Tree) -> Iterator[str]:
    """Yield paths that exist on one machine only, such as those below a home directory."""
    pattern = re.compile(r"(?<![\w.$}>)*-])/(?:home|root|Users|work|farm)/\w")
    yield from lines_matching(tree, pattern, "a path of one machine")


def citations_are_of_what_is_here(tree: Tree) -> Iterator[str]:
    """Yield citations of documents that are not in the repository, because readers cannot look them
    up.

    The names of the published vectors of container health are permitted, because the vectors are in
    the repository.
    """
    named = {name for path in VECTORS for name in CITATION.findall(tree.texts.get(path, ""))}
    for path, text in tree.texts.items():
        if not path.endswith((".py", ".md", ".proto")) or path.startswith(GENERATED_FOLDER):
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            for cited in CITATION.findall(line):
                if cited not in named:
                    yield f"{path}:{number}: cites {cited}"


def no_host_of_a_registry(tree: Tree) -> Iterator[str]:
    """Yield host names of package registries. The user's configuration selects the registry."""
    hosts = (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("repo", "maven", "apache", "org"),
        ("repo1", "maven", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),  # a module's name also begins with a host: that is no registry
        ("sum", "golang", "org"),
        ("index", "golang", "org"),
    )
    pattern = re.compile("|".join(r"\b" + r"\.".join(parts) + r"\b" for parts in hosts))
    yield from lines_matching(tree, pattern, "a host of a package registry")


def lines_matching(tree: Tree, pattern: re.Pattern[str], fault: str) -> Iterator[str]:
    """Yield each line of any file that the pattern finds."""
    for path, text in tree.texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                yield f"{path}:{number}: {fault}: {line.strip()[:80]}"


def docstrings_say_what_it_is(tree: Tree) -> Iterator[str]:
    """Yield docstrings that begin with a question word or a pronoun. They should begin with a verb
    in the imperative or with a noun."""
    for path, module in tree.modules.items():
        for line, text in language.indirect_docstrings(module):
            if not path.startswith("tests/"):
                yield f"{path}:{line}: {text[:60]}"


def error_texts_are_plain(tree: Tree) -> Iterator[str]:
    """Yield texts of errors that begin with a capital letter, end with a full stop, or are not
    plain English."""
    for path, module in tree.modules.items():
        if path.startswith(PRODUCT_PACKAGES):
            for line, fault in messages.violations(module):
                yield f"{path}:{line}: {fault}"


def tests_name_their_subject(tree: Tree) -> Iterator[str]:
    """Yield tests whose name begins with a pronoun or a connective. A name should have a subject, a
    condition and a result."""
    for path, node in tree.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        if path.startswith("tests/") and language.CONNECTIVE.match(node.name):
            yield f"{path}:{node.lineno}: {node.name}"


def classes_are_nouns_of_their_own(tree: Tree) -> Iterator[str]:
    """Yield classes whose name is a lone participle, or the name of another class of the
    product."""
    product = {path: module for path, module in tree.modules.items() if is_product(path)}
    for path, line, name in language.repeated_classes(product):
        yield f"{path}:{line}: {name} is another class, too"
    for path, node in tree.nodes(ast.ClassDef):
        if is_product(path) and language.is_lone_participle(node.name):
            yield f"{path}:{node.lineno}: {node.name} is a participle"


def documents_wrap(tree: Tree) -> Iterator[str]:
    """Yield lines of prose in documents that are longer than 100 characters."""
    for path, text in tree.texts.items():
        if path.endswith(".md"):
            for number in language.long_prose(text):
                yield f"{path}:{number}: a long line"


RULES: tuple[Rule, ...] = (
    functions_are_short,
    files_are_short,
    packages_are_docstrings,
    proto_is_no_package,
    no_module_is_dead,
    modules_are_nouns_of_the_domain,
    names_of_modules_mean_one_thing,
    quantities_end_in_their_unit,
    things_have_one_name,
    arguments_cannot_be_swapped,
    nothing_is_left_undone,
    skips_have_reasons,
    no_path_of_one_machine,
    no_host_of_a_registry,
    citations_are_of_what_is_here,
    docstrings_say_what_it_is,
    error_texts_are_plain,
    tests_name_their_subject,
    classes_are_nouns_of_their_own,
    documents_wrap,
)
