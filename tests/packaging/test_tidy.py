"""The style guide as a test: every rule holds here, and every rule can fail."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.state.table import without_collection
from tests.support.packaging import tidy
from tests.support.packaging.naming import synonyms

ROOT = Path(__file__).resolve().parents[2]

LONG_FUNCTION = "def long() -> None:\n" + "    pass\n" * tidy.FUNCTION_LINES_MAX
LONG_FILE = "value = 1\n" * (tidy.FILE_LINES_MAX + 1)
UNFINISHED = "# TO" + "DO: finish\n"
HOME = "/ho" + "me/someone/suture"
VECTORS = "tests/golden/health/vectors.txt"
WORDS = """
| Word | Meaning | Not |
|---|---|---|
| checksum | stands for bytes | hash, hash tree |
| replica | what a datanode has | *copy*, node (except here) |

| another | table |
|---|---|
| chunk | window |
"""
HOST = ".".join(["py" + "pi", "org"])
GO_HOST = ".".join(("proxy", "golang", "org"))

# rule -> (files that break it, the same files mended)
PLANTED: dict[tidy.Rule, tuple[dict[str, str], dict[str, str]]] = {
    tidy.functions_are_short: (
        {"agent/x.py": LONG_FUNCTION},
        {"agent/x.py": LONG_FUNCTION.removesuffix("    pass\n")},
    ),
    tidy.files_are_short: (
        {"agent/x.py": LONG_FILE},
        {"agent/x.py": LONG_FILE.removesuffix("value = 1\n")},
    ),
    tidy.packages_are_docstrings: (
        {
            "agent/__init__.py": '"""The agent."""\n\nimport os\n',
            "suture/__init__.py": '"""The client."""\n\nvalue = 1\n',
        },
        {
            "agent/__init__.py": '"""The agent."""\n',
            "suture/__init__.py": '"""The client."""\n\nfrom x import y\n\n__all__ = ["y"]\n',
        },
    ),
    tidy.proto_is_no_package: (
        {"proto/suture/x.py": ""},
        {"proto/suture/x.proto": ""},
    ),
    tidy.no_module_is_dead: (
        {"agent/x.py": "", "agent/main.py": "", "tests/unit/test_x.py": "import agent.x\n"},
        {"agent/x.py": "", "agent/main.py": "from agent import x\n"},
    ),
    tidy.modules_are_nouns_of_the_domain: (
        {"agent/utils.py": ""},
        {"agent/lease.py": ""},
    ),
    tidy.names_of_modules_mean_one_thing: (
        {"agent/scan/parity.py": "", "suture/ec/parity.py": ""},
        {"agent/scan/parity_scrub.py": "", "suture/ec/parity.py": "", "scm/main.py": ""}
        | {"agent/main.py": "", "tests/parity.py": ""},
    ),
    tidy.quantities_end_in_their_unit: (
        {"agent/x.py": "def read(timeout: float | None, *, chunk_size_max: int) -> None: ...\n"},
        {
            "agent/x.py": "def read(timeout_s: float | None, *, bytes_max: int) -> None: ...\n",
            "agent/y.py": "rate_of: Callable[[int], float]\nsize: Final[str]\n",
        },
    ),
    tidy.things_have_one_name: (
        {
            tidy.VOCABULARY: WORDS,
            "agent/x.py": "class ChunkHash: ...\n",
        },
        {
            tidy.VOCABULARY: WORDS,
            "agent/x.py": "def chunk_checksum() -> int: ...\ndef __hash__() -> int: ...\n"
            "def copy_of() -> int: ...\nwindow: Hash\n",
        },
    ),
    tidy.arguments_cannot_be_swapped: (
        {"agent/x.py": "def cut(id: int, start: int, stop: int) -> None: ...\n"},
        {
            "agent/x.py": "def cut(id: int, *, start: int, stop: int) -> None: ...\n",
            "agent/y.py": "def read(fd: int, offset: int, size_bytes: int) -> None: ...\n",
            "agent/z.py": "def at(name: str, offset: int, size_bytes: int) -> None: ...\n",
        },
    ),
    tidy.nothing_is_left_undone: (
        {"docs/X.md": UNFINISHED, "agent/x.py": "raise NotImplementedError\n"},
        {"docs/X.md": "# Done\n", "agent/x.py": "raise ValueError\n"},
    ),
    tidy.skips_have_reasons: (
        {"tests/test_x.py": "@pytest.mark.skip\ndef test_a(): pytest.skip('')\n"},
        {"tests/test_x.py": "@pytest.mark.skip('why')\ndef test_a(): pytest.skip(reason='why')\n"},
    ),
    tidy.no_path_of_one_machine: (
        {"docs/X.md": f"cd {HOME}\n"},
        {"docs/X.md": "cd /opt/suture, or $DIR/home/x\n"},
    ),
    tidy.citations_are_of_what_is_here: (
        {"agent/x.py": '"""As S2' + '.61 says."""\n', "docs/X.md": "Closed (K" + "3).\n"},
        {
            "agent/x.py": '"""No copy is needed."""\n',
            VECTORS: "W20 | R CLOSED\n",
            "docs/X.md": "W20\n",
        },
    ),
    tidy.no_host_of_a_registry: (
        {
            "Makefile": f"pip install --index-url https://{HOST}/simple\n",
            "go.env": f"GOPROXY=https://{GO_HOST}\n",
        },
        {"Makefile": "pip install .\n", "go.mod": "require google.golang.org/grpc v1.77.0\n"},
    ),
    tidy.docstrings_say_what_it_is: (
        {"agent/x.py": 'def f():\n    """What a replica has."""\n', "scm/x.py": '"""It is."""\n'},
        {"agent/x.py": 'def f():\n    """Return a replica."""\n', "tests/x.py": '"""It is."""\n'},
    ),
    tidy.tests_name_their_subject: (
        {"tests/unit/test_x.py": "def test_what_is_full(): ...\n"},
        {"tests/unit/test_x.py": "def test_full_disk_is_reported(): ...\n"},
    ),
    tidy.error_texts_are_plain: (
        {
            "agent/x.py": "RefusedError(code, 'Cannot do it', hint='ask us')\n"
            "UnavailableError(code, f'{x} was not told.')\n"
        },
        {
            "agent/x.py": "RefusedError(code, 'cannot do it', hint='LMDB is ...')\n",
            "tests/x.py": "RefusedError(code, 'Cannot do it')\n",
        },
    ),
    tidy.classes_are_nouns_of_their_own: (
        {"agent/x.py": "class Held: ...\nclass Lease: ...\n", "scm/x.py": "class Lease: ...\n"},
        {"agent/x.py": "class Lease: ...\n", "tests/x.py": "class Held: ...\nclass Lease: ...\n"},
    ),
    tidy.documents_wrap: (
        {"docs/X.md": "word " * 21 + "\n"},
        {"docs/X.md": f"{'word ' * 20}\n| {'cell ' * 30}|\n```\n{'code ' * 30}\n```\n"},
    ),
}


@pytest.fixture(scope="module")
def repository() -> Iterator[tidy.Tree]:
    """This repository, as it would be committed. To look through millions of nodes for garbage
    would take twice as long as the rules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = (project["scripts"], *project["entry-points"].values())
    entries = frozenset(target.partition(":")[0] for each in groups for target in each.values())
    with without_collection():
        yield tidy.Tree(tidy.read_repository(ROOT), entries)


@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_the_repository_obeys(rule: tidy.Rule, repository: tidy.Tree) -> None:
    """
    No file breaks the rule.
    """
    violations = sorted(rule(repository))

    assert [] == violations, "\n".join([rule.__doc__ or "", *violations])


@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_a_violation_is_seen(rule: tidy.Rule) -> None:
    """
    Each rule names every planted violation, and is content with the mended files.
    """
    broken, mended = PLANTED[rule]

    found = list(rule(tidy.Tree(broken, frozenset({"agent.main"}))))

    assert found
    assert all(": " in sentence and sentence.partition(":")[0] in broken for sentence in found)
    assert [] == list(rule(tidy.Tree(mended, frozenset({"agent.main"}))))


def test_every_quantity_of_a_signature_is_judged() -> None:
    """
    Positional, keyword-only and field declarations are all looked at, each on its own line.
    """
    tree = tidy.Tree({"agent/x.py": "scan_interval: int = 5\ndef f(a, rate: float, /): ...\n"})

    found = list(tidy.quantities_end_in_their_unit(tree))

    assert ["agent/x.py:1", "agent/x.py:2"] == sorted(line.rpartition(": ")[0] for line in found)


def test_every_word_of_the_vocabulary_is_looked_for(repository: tidy.Tree) -> None:
    """
    The tables of the real page are read: a word of each of them, and none in italics.
    """
    words = synonyms(repository.texts[tidy.VOCABULARY])

    assert words.items() >= {"segment": "block", "trash": "quarantine", "hash": "checksum"}.items()
    assert "fence" == words["kick"]
    assert "tree, root, leaf" == words["hash tree"], "two words are looked for side by side"
    assert not {"copy", "disk", "check", "lock"} & words.keys()


@pytest.mark.parametrize(
    ("path", "text"),
    [("agent/hash.py", ""), ("agent/x.py", "def build_hash_tree() -> None: ...\n")],
)
def test_a_synonym_is_seen_in_a_module_and_among_words(path: str, text: str) -> None:
    """
    By the name of a file, and where it is one of several words.
    """
    tree = tidy.Tree({tidy.VOCABULARY: WORDS, path: text})

    assert list(tidy.things_have_one_name(tree))


def test_the_whole_repository_is_read(repository: tidy.Tree) -> None:
    """
    The rules judge the real files, hidden folders included, and not an empty list.
    """
    expected = {
        "Makefile",
        ".ci/run",
        "pyproject.toml",
        "merkle/replica.py",
        "tests/support/packaging/tidy.py",
    }

    assert expected <= repository.texts.keys()
    assert not any(path.startswith(".venv/") for path in repository.texts)
