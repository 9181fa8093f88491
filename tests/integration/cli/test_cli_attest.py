"""`suture attest`: what a statement says of real work, and what is refused or found out."""

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from agent.cli.main import run
from agent.store.verification_log.chain import EntryKind, Head, encode, file_name
from agent.store.verification_log.log_files import files_of
from agent.store.verification_log.log_reader import log_directory
from merkle.replica import BlockId, ContainerId
from suture.runtime.exit_codes import ExitCode
from tests.support.faults.small_disk import small_disk
from tests.support.printed_json import document_in
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

OTHER = ContainerId(2)
TODAY = datetime.now(UTC).date()
PERIOD = ("--from", str(TODAY - timedelta(days=1)), "--to", str(TODAY + timedelta(days=2)))
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a volume: two whole reads, one that found damage, its repair, a read, a delete."""
    replica = StoredReplica(tmp_path / "volume")
    replica.create()
    replica.create(OTHER)
    good = replica.file(1).read_bytes()
    chunk = replica.store.view(CONTAINER).block(BlockId(1)).chunks[0]
    replica.scan()
    replica.scan(OTHER)
    replica.flip(1, 100)
    replica.scan()
    replica.store.repair(CONTAINER).install_chunk(BlockId(1), chunk, good[: chunk.length_bytes])
    replica.scan()
    replica.store.delete_container(OTHER, force=True)
    replica.close()
    return tmp_path / "volume"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Return a key; its public key lies beside it."""
    assert ExitCode.OK == run(["attest", "--make-key", str(tmp_path / "key")])
    return tmp_path / "key"


def public(key: Path) -> Path:
    """Return the public key of a key."""
    return key.with_name(f"{key.name}.pub")


def stated(volume: Path, key: Path, *more: str) -> Path:
    """Make a statement; return its file."""
    path = key.with_name("statement.json")
    words = ["attest", str(volume), *PERIOD, "--key", str(key), "--output", str(path), *more]
    assert ExitCode.OK == run(words)
    return path


def verified(path: Path, key: Path, capsys: Capture) -> tuple[int, Any]:
    """Verify a statement; return the exit code and the answer."""
    capsys.readouterr()
    code = run(["attest", "--verify", str(path), "--key", str(key), "--json"])
    return code, document_in(capsys.readouterr().out, "attest")


def test_statement_counts_reads_verdicts_repairs_and_deletes(
    volume: Path, key: Path, capsys: Capture
) -> None:
    """The statement has reads, verdicts, failures, repairs and deletes, each with its entry
    number.
    """
    code, answer = verified(stated(volume, key), public(key), capsys)

    [log] = answer["statement"]["logs"]
    assert ExitCode.OK == code
    assert {"healthy": 3, "damaged": 1} == log["verdicts"]
    assert [(1, 3), (2, 1)] == [(one["container_id"], one["reads"]) for one in log["replicas"]]
    assert all(one["last_read_whole_at_ms"] for one in log["replicas"])
    [failure], [repair], [delete] = log["failures"], log["repairs"], log["deletes"]
    assert ("damaged", {"CHUNK_CHECKSUM": 1}) == (failure["verdict"], failure["faults"])
    assert (1, 1, 0) == (repair["container_id"], repair["block_id"], repair["offset"])
    assert (2, True) == (delete["container_id"], delete["forced"])
    assert failure["entry"] < repair["entry"] < delete["entry"] == log["entries_in_all"]
    assert ("test-cluster", "dn-1") == (log["cluster_id"], log["datanode_id"])


def test_people_can_read_it(volume: Path, key: Path, capsys: Capture) -> None:
    """The same in words, from the signed file."""
    path = stated(volume, key)
    capsys.readouterr()

    assert ExitCode.OK == run(["attest", "--verify", str(path), "--key", str(public(key))])

    said = capsys.readouterr().out
    assert "2 replicas were read whole" in said
    assert "verdicts: 1 damaged, 3 healthy" in said
    assert "1 failures" in said
    assert "CHUNK_CHECKSUM" in said
    assert "holds; signed with key" in said


def test_anybody_can_verify_it_without_this_program(volume: Path, key: Path) -> None:
    """Ed25519 over the JSON with sorted names and without spaces."""
    document = json.loads(stated(volume, key).read_text())
    public_key = load_pem_public_key(public(key).read_bytes())
    text = json.dumps(document["statement"], sort_keys=True, separators=(",", ":"))

    assert isinstance(public_key, Ed25519PublicKey)
    public_key.verify(bytes.fromhex(document["signature"]), text.encode())


def test_only_what_is_of_the_time_is_counted(volume: Path, key: Path, capsys: Capture) -> None:
    """For another period, the statement says that nothing was read, and names the log."""
    path = key.with_name("other.json")
    words = ("--from", "2020-01-01", "--to", "2020-02-01", "--output", str(path))
    assert ExitCode.OK == run(["attest", str(volume), *words, "--key", str(key)])

    [log] = verified(path, public(key), capsys)[1]["statement"]["logs"]

    assert (0, {}, [], []) == (log["entries"], log["verdicts"], log["failures"], log["replicas"])
    assert log["entries_in_all"] > 5


def drop_a_failure(document: Any) -> None:
    """Leave out what failed."""
    document["statement"]["logs"][0]["failures"] = []


def move_the_time(document: Any) -> None:
    """Speak of another time."""
    document["statement"]["to_ms"] += 1


def sign_otherwise(document: Any) -> None:
    """Change the signature."""
    last = document["signature"][-1]
    document["signature"] = document["signature"][:-1] + ("0" if last != "0" else "1")


@pytest.mark.parametrize("change", [drop_a_failure, move_the_time, sign_otherwise])
def test_a_statement_that_was_changed_does_not_hold(
    volume: Path, key: Path, capsys: Capture, change: Callable[[Any], None]
) -> None:
    """Any change to the content breaks the statement; a change of layout does not."""
    path = stated(volume, key)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document))
    assert ExitCode.OK == verified(path, public(key), capsys)[0]
    change(document)
    path.write_text(json.dumps(document))

    code, answer = verified(path, public(key), capsys)

    assert (ExitCode.TO_DO, False, "it was changed") == (code, answer["valid"], answer["reason"])


def test_another_key_is_named(volume: Path, key: Path, tmp_path: Path, capsys: Capture) -> None:
    """The error names the wrong key, and does not claim that the statement was changed."""
    path = stated(volume, key)
    assert ExitCode.OK == run(["attest", "--make-key", str(tmp_path / "another")])

    code, answer = verified(path, tmp_path / "another.pub", capsys)

    assert ExitCode.TO_DO == code
    assert answer["reason"].startswith("it names key ")


def test_attest_refuses_a_log_with_a_removed_entry(
    volume: Path, key: Path, capsys: Capture
) -> None:
    """The error names the gap, and no file is written."""
    directory = log_directory(volume)
    [name] = files_of(directory)
    lines = (directory / name).read_bytes().splitlines(keepends=True)
    (directory / name).write_bytes(b"".join([*lines[:2], *lines[3:]]))
    path = key.with_name("statement.json")
    words = ["attest", str(volume), *PERIOD, "--key", str(key), "--output", str(path)]

    assert ExitCode.FAILED == run(words)

    assert "entry 3 was removed" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    "facts",
    [{}, {"at_ms": "x"}, {"at_ms": None}, {"at_ms": float("inf")}, {"kind": "verdict", "at_ms": 2}],
)
def test_attest_refuses_entries_that_no_agent_writes(
    tmp_path: Path, key: Path, capsys: Capture, facts: dict[str, object]
) -> None:
    """A forger can make every hash fit, so the entries themselves are validated."""
    directory = tmp_path / "forged"
    directory.mkdir()
    line, _ = encode(Head(), {"kind": EntryKind.FILE, "missed": "x", **facts})
    (directory / file_name(1)).write_bytes(line)
    words = ["attest", str(tmp_path / "forged"), "--from", "1970-01-01", "--key", str(key)]

    assert ExitCode.FAILED == run([*words, "--output", str(tmp_path / "statement.json")])

    assert "no agent writes such entries" in capsys.readouterr().err


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([(95, 1), (102, 1), (108, 1)], (7, 1), id="a read before the period counts"),
        pytest.param([(95, 1), (101, 1), (109, 2)], (8, 1), id="the end of the log counts"),
        pytest.param([(80, 1), (99, 1), (101, 1), (102, 2)], (2, 1), id="an older wait does not"),
        pytest.param([(95, 1), (101, -1), (109, 2)], (6, 1), id="a deleted replica waits no more"),
        pytest.param([(95, 1), (111, 1)], (15, 1), id="a read after the period ends no wait in it"),
    ],
)
def test_statement_has_the_longest_time_between_whole_reads(
    tmp_path: Path, key: Path, capsys: Capture, events: list[tuple[int, int]], expected: object
) -> None:
    """The period is from day 100 to day 110. A negative container is deleted."""
    owner = {"kind": EntryKind.FILE, "cluster_id": "c", "datanode_id": "d", "volume_id": "v"}
    line, head = encode(Head(), {**owner, "at_ms": 0, "software": "1"})
    lines = [line]
    for day, container_id in events:
        read = {"verdict": "healthy", "whole": True, "bytes_read": 1, "root": "0"}
        kind = (
            {"kind": EntryKind.VERDICT, **read} if container_id > 0 else {"kind": EntryKind.DELETE}
        )
        facts = {**kind, "at_ms": day * DAY_MS, "container_id": abs(container_id), "index": 0}
        line, head = encode(head, facts)
        lines.append(line)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / file_name(1)).write_bytes(b"".join(lines))
    path = tmp_path / "statement.json"
    period = ("--from", "1970-04-11", "--to", "1970-04-21")
    words = ("attest", str(tmp_path / "log"), *period, "--key", str(key), "--output", str(path))
    capsys.readouterr()

    assert ExitCode.OK == run([*words])

    said = capsys.readouterr().out
    [log] = json.loads(path.read_text())["statement"]["logs"]
    days, container_id = log["longest_wait_ms"] / DAY_MS, log["longest_wait_container_id"]
    assert expected == (days, container_id)
    assert f"waited longer than {days:.0f} d (container {container_id})" in said


def test_a_key_is_kept_from_others(volume: Path, key: Path, capsys: Capture) -> None:
    """Only its owner can read it, it is never overwritten, and a key that others can read signs
    nothing.
    """
    mode = stat.S_IMODE(key.stat().st_mode)
    content = key.read_bytes()
    path = key.with_name("statement.json")

    assert ExitCode.FAILED == run(["attest", "--make-key", str(key)])
    key.chmod(0o640)
    words = ["attest", str(volume), *PERIOD, "--key", str(key), "--output", str(path)]
    assert ExitCode.FAILED == run(words)

    assert 0o600 == mode
    assert content == key.read_bytes()
    assert "other users can access it (mode 0640)" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--key", "KEY"], "--from or --output are missing"),
        (
            ["VOLUME", "--from", "soon", "--key", "KEY", "--output", "x"],
            "invalid --from 'soon': expected a date",
        ),
        (["VOLUME", *PERIOD, "--output", "x"], "--key is missing"),
        (
            [
                "VOLUME",
                "--from",
                "2026-02-01",
                "--to",
                "2026-01-01",
                "--key",
                "KEY",
                "--output",
                "x",
            ],
            "is not before",
        ),
        (["VOLUME", "VOLUME", *PERIOD, "--key", "KEY", "--output", "x"], "named twice"),
        (["--verify", "KEY", "--key", "KEY.pub"], "not a statement of format 1"),
        (["--verify", "KEY", "--key", "KEY"], "as a public key"),
        (["VOLUME", *PERIOD, "--key", "KEY.pub", "--output", "x"], "as a private key"),
    ],
)
def test_invalid_attest_arguments_are_refused_and_write_nothing(
    volume: Path,
    key: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    what: str,
) -> None:
    """The error names the problem and the remedy; nothing is written."""
    monkeypatch.chdir(key.parent)
    public(key).chmod(0o600)
    named = {"KEY": str(key), "KEY.pub": str(public(key)), "VOLUME": str(volume)}

    assert ExitCode.FAILED == run(["attest", *(named.get(word, word) for word in words)])

    assert what in capsys.readouterr().err
    assert not Path("x").exists()


def test_a_full_disk_leaves_no_part_of_a_statement(
    volume: Path, key: Path, tmp_path: Path, capsys: Capture
) -> None:
    """An empty file of that name looks like a statement, and stands in the way of the next."""
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        path = disk.path / "statement.json"
        asked = ["attest", str(volume), *PERIOD, "--key", str(key), "--output", str(path)]

        assert ExitCode.FAILED == run(asked)
        assert "No space left on device" in capsys.readouterr().err
        assert [disk.ballast] == list(disk.path.iterdir())

        disk.free()
        assert ExitCode.OK == run(asked)
        assert ExitCode.OK == run(["attest", "--verify", str(path), "--key", str(public(key))])


def test_a_statement_is_never_overwritten(volume: Path, key: Path, capsys: Capture) -> None:
    """The old statement may have been handed out. The target of a link is not overwritten
    either.
    """
    path = stated(volume, key)
    before = path.read_bytes()
    capsys.readouterr()
    link = key.with_name("link.json")
    link.symlink_to("nowhere")

    for output in (path, link):
        asked = ["attest", str(volume), *PERIOD, "--key", str(key), "--output", str(output)]
        assert ExitCode.FAILED == run(asked)
        assert "File exists" in capsys.readouterr().err

    assert before == path.read_bytes()
    assert link.is_symlink()
    assert not link.exists()
