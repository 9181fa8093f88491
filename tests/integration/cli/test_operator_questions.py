"""docs/operations/questions-*.md: each question is answered by its one command."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.manual.reading import MANUAL, header, manual_text, pages, steps, words_of
from tests.support.nursery import forked
from tests.support.storage.blocks_on_disk import newest_block
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

QUESTION = re.compile(r"^## (.+[.?])\n\n```console\n\$ (suture .+)\n((?:.|\n)*?)^```", re.MULTILINE)
MONTH = MANUAL / "questions-month.md"
PAGES = "\n".join(
    page.read_text() for page in pages() if page.name.startswith("questions-") and page != MONTH
)
QUESTIONS = QUESTION.findall(PAGES)
SAYS = {
    "Which disks are not healthy, and which one is replaced next?": r"replace next +volume",
    "May I switch this datanode off?": r"\Ayes: ",
    "What if it never came back?": r"\Anothing would be lost",
    "Empty a volume to remove its disk.": r" is empty; it may be pulled",
    "Make a volume read-only.": r"\bread-only\b",
    "Which keys would be deleted?": r"would delete report.pdf, 293.0 KiB",
    "Which keys are in this container?": r"\breport\.pdf\b",
    "Where are the replicas of this container, and when was each read last?": r"\b(never|ago)\b",
    "What was changed on the disks last night?": r"\b1\b",
    "Who deleted or replaced this key?": r"plaintext +DeleteKeys +OK +keys=report.pdf",
    "Is safe mode on, and which datanodes are missing?": r"\Asafe mode is off",
    "Which containers are not healthy, and which keys are in them?": r"Container Summary Report",
}
"""What an answer must say in this cluster, whatever columns it has."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return three datanodes of two volumes each."""
    root = tmp_path_factory.mktemp("questions")
    sections = "[scan]\nstart_jitter_s = 0\nwatch = false\n"
    with Cluster(
        root,
        agents=3,
        volumes=2,
        agent_sections=sections,
        scm_settings={"audit_file": str(root / "audit.jsonl")},
        launch=forked,
    ) as running:
        yield running


def store_and_damage(cluster: Cluster, suture: CommandLine, path: Path) -> None:
    """Store a file in container 1, flip a bit of one replica, let the scan find it."""
    path.write_bytes(os.urandom(300_000))
    stored = suture.json("put", str(path), "--close")
    assert [1] == stored["container_ids"]
    suture.wait_until_reported(1)  # a replica that was left behind is copied first
    suture.wait_until_closed([1])
    block = newest_block(cluster, 1, 1)
    content = bytearray(block.read_bytes())
    content[70_000] ^= 1
    block.write_bytes(bytes(content))
    suture("scrub", "scan", "1", "--wait", code=ExitCode.TO_DO)


def test_every_question_in_the_manual_has_a_command() -> None:
    """Every heading of the pages has one command below it."""
    headings = re.findall(r"^## (.+)$", PAGES, re.MULTILINE)

    assert headings == [question for question, _, _ in QUESTIONS]
    assert 20 < len(QUESTIONS)


def test_twenty_questions_are_answered_by_commands_and_pages_that_tests_type() -> None:
    """Each question has a command of the manual, whose commands are all typed, or the page of a
    task. `tests/packaging/test_documents.py` follows the links."""
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", MONTH.read_text(), re.MULTILINE)
    typed = {step.command for step in steps(manual_text())}
    commands = [command for _, answer in rows for command in re.findall(r"`(suture .+?)`", answer)]

    assert 20 == len({question for question, _ in rows})
    assert all("`suture " in answer or ".md" in answer for _, answer in rows)
    assert [] == [command for command in commands if not is_typed(command, typed)]


def is_typed(command: str, typed: set[str]) -> bool:
    """Return True if the manual has the command, perhaps with more options."""
    return any(one == command or one.startswith(f"{command} ") for one in typed)


def test_commands_of_the_manual_print_the_documented_output(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each command works, in the order of the document, and prints the documented columns or
    first words.
    """
    store_and_damage(cluster, CommandLine(cluster.scm.address, capsys), tmp_path / "report.pdf")
    places = {
        "ADDRESS": cluster.nodes[1].address,
        "FILE": str(cluster.root / "datanode2.toml"),
        "BUNDLE": str(tmp_path / "evidence.tar.gz"),
        "VOLUME": f"{cluster.nodes[1].address}:{cluster.volume_paths(1)[0]}",
    }

    for question, command, shown in QUESTIONS:
        words = [places.get(word, word) for word in shlex.split(command)[1:]]
        if words[0] != "config" and "--datanode" not in words:
            words += ["--scm", cluster.scm.address]
        capsys.readouterr()
        code = run(words)
        said = capsys.readouterr().out

        assert code in {ExitCode.OK, ExitCode.TO_DO, ExitCode.UNAVAILABLE}, question
        assert words_of(header(shown)) <= words_of(said), f"{question}: {said}"
        assert re.search(SAYS.get(question, ""), said), f"{question}: {said}"
    assert SAYS.keys() <= {question for question, _, _ in QUESTIONS}
