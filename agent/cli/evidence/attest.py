"""Command `attest`: signs a statement for auditors, which is based on the verification logs of
volumes."""

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

from agent.cli.evidence import signing
from agent.cli.evidence.verify_log import (
    AnchorOption,
    LogsArgument,
    chain_check_text,
    named_anchors,
)
from agent.store.verification_log.attestation import FORMAT, account
from agent.store.verification_log.chain import Head, check, entries
from agent.store.verification_log.log_reader import read_log
from suture.client.download import write_whole
from suture.config.quantity import format_duration
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import pluralize, print_json, print_line
from suture.terminal.typer_options import option

KIND: Final = "suture verification statement"
STATEMENT_BYTES_MAX: Final = 1024**3
SHOWN_MAX: Final = 20  # entries shown per list; the file has all


BeginOption = Annotated[
    str, option("DATE", "Start of the period in UTC, for example 2026-11-01.", "--from")
]
EndOption = Annotated[
    str, option("DATE", "End of the period in UTC, exclusive; default: now.", "--to")
]
StatementOption = Annotated[
    Path | None, option("FILE", "Verify this statement instead of signing one.")
]
MakeKeyOption = Annotated[Path | None, option("FILE", "Create a key and its .pub file, and exit.")]


def attest(
    volumes: LogsArgument = None,
    begin: BeginOption = "",
    end: EndOption = "",
    key: Annotated[
        Path | None, option("FILE", "Key for signing; with --verify, its .pub file.")
    ] = None,
    output: Annotated[Path | None, option("FILE", "File to write the statement to.")] = None,
    anchor: AnchorOption = None,
    verify: StatementOption = None,
    make_key: MakeKeyOption = None,
) -> int:
    """Sign a statement about verifications and repairs.

    The statement is built from the intact verification logs of a period. It lists deletes and all
    failures, too.

    Exit codes:
        2: with --verify: the signature does not match the key or the statement

    Example:
        suture attest /data/1 --from 2026-11-01 --key site.key --output november.json
    """
    if make_key is not None:
        return new_key(make_key)
    if key is None:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            "cannot sign or verify a statement: --key is missing",
            hint="give --key FILE; suture attest --make-key FILE creates a key",
        )
    if verify is not None:
        return verify_statement(verify, key)
    if not volumes or output is None or not begin:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            "cannot sign a statement: volumes, --from or --output are missing",
            hint="suture attest DIR --from 2026-11-01 --key FILE --output FILE",
        )
    anchors = named_anchors(anchor or (), volumes)
    now_ms = int(time.time() * 1000)
    period = moment_ms("--from", begin), moment_ms("--to", end) if end else now_ms
    if period[0] >= period[1]:
        text = f"--from {begin} is not before --to {end or 'now'}"
        raise RefusedError(Code.MALFORMED_REQUEST, text)
    signer = signing.read_key(key)
    statement = build_statement(volumes, anchors, period, now_ms)
    document = {
        "statement": statement,
        "key": signing.fingerprint(signer.public_key()),
        "signature": signing.sign(signer, statement),
    }
    if os.path.lexists(output):  # existing statements are never overwritten
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(output))
    write_whole(output, [json.dumps(document, indent=1, sort_keys=True).encode("ascii"), b"\n"])
    print_statement(output, document, remark="signed with key")
    return ExitCode.OK


def new_key(path: Path) -> int:
    """Create a key for signing statements, and print how to use it."""
    public_path = signing.make_key(path)
    found = signing.fingerprint(signing.read_public_key(public_path))
    if is_json():
        print_json({"key": str(path), "public_key": str(public_path), "fingerprint": found})
    else:
        print_line(f"{path}: signs statements (mode 0600); keep it off the hosts that it is about")
        print_line(f"{public_path}: for auditors; tell them its fingerprint another way: {found}")
    return ExitCode.OK


def moment_ms(option: str, text: str) -> int:
    """Return a date, or a date and time in UTC, as milliseconds since 1970.

    `text` is the value of the option `option`. Raise RefusedError if it is not a date.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"invalid {option} '{text[:100]}': expected a date",
            hint="for example 2026-11-01 or 2026-11-01T06:00, in UTC",
        ) from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return int(moment.timestamp() * 1000)


def build_statement(
    volumes: Sequence[Path], anchors: Sequence[Head], period: tuple[int, int], now_ms: int
) -> dict[str, object]:
    """Return the statement about the logs of `volumes` in a period. The caller signs it.

    `period` has the start and the end of the period in milliseconds. Raise RefusedError if a path
    has no log, if a log is damaged, or if a log is given twice.
    """
    logs = []
    for path in volumes:
        files = read_log(path)
        checked = check(files, anchors)
        if checked.gap is not None or not checked.head.count:
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                f"cannot sign a statement from {path}: its chain is broken: "
                f"{chain_check_text(checked)}",
                hint="keep the log unchanged; suture verify-log shows the gap",
            )
        try:
            logs.append(account(entries(files), checked, from_ms=period[0], to_ms=period[1]))
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                f"cannot sign a statement from {path}: no agent writes such entries: {error!r}",
                hint="keep the log unchanged: its chain is intact, so the entries were forged",
            ) from error
    whose = [str(one["volume_id"]) for one in logs]
    if len({*whose}) != len(whose):
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            "cannot sign a statement: a volume is named twice, or a log has two copies",
        )
    return {
        "kind": KIND,
        "format": FORMAT,
        "suture": version("suture"),
        "made_at_ms": now_ms,
        "from_ms": period[0],
        "to_ms": period[1],
        "logs": logs,
    }


def verify_statement(path: Path, key: Path) -> int:
    """Verify the signature of a statement, and print the result and the statement.

    Return the exit code.
    """
    public_key = signing.read_public_key(key)
    document = read_statement(path)
    if signing.verify_signature(public_key, document["statement"], str(document["signature"])):
        print_statement(path, document, remark="holds; signed with key")
        return ExitCode.OK
    own = signing.fingerprint(public_key)
    is_of_another = document["key"] != own
    why = f"it names key {document['key']}" if is_of_another else "it was changed"
    if is_json():
        print_json({"file": str(path), "valid": False, "reason": why, "key": own})
    else:
        print_line(f"{path}: is not what the holder of key {own} signed: {why}")
    return ExitCode.TO_DO


def read_statement(path: Path) -> dict[str, Any]:
    """Return a statement and its signature from a file, without verifying the signature.

    Raise RefusedError if the file is not a statement.
    """
    with path.open("rb") as file:
        content = file.read(STATEMENT_BYTES_MAX)
    try:
        document = json.loads(content)
        kind = document["statement"]["kind"], document["statement"]["format"]
        if not isinstance(document["signature"], str) or not isinstance(document["key"], str):
            kind = ("", 0)
    except (ValueError, KeyError, TypeError, RecursionError):
        kind, document = ("", 0), {}
    if kind != (KIND, FORMAT):
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"cannot verify {path}: it is not a statement of format {FORMAT}",
            hint="suture attest creates a statement",
        )
    found: dict[str, Any] = document
    return found


def print_statement(path: Path, document: Mapping[str, Any], *, remark: str) -> None:
    """Print the content of a statement as text or as JSON."""
    statement = document["statement"]
    if is_json():
        print_json(
            {"file": str(path), "valid": True, "key": document["key"], "statement": statement}
        )
        return
    for line in text_of(statement):
        print_line(line)
    print_line(f"{path}: {remark} {document['key']}")


def text_of(statement: Mapping[str, Any]) -> list[str]:
    """Return a statement as lines of text."""
    lines = [
        f"From {day(statement['from_ms'])} to {day(statement['to_ms'])}, by verification logs "
        f"whose chains hold; made {day(statement['made_at_ms'])} by suture {statement['suture']}."
    ]
    for log in statement["logs"]:
        lines += _log_text(log)
    return lines


def _log_text(log: Mapping[str, Any]) -> list[str]:
    whole = sum(1 for one in log["replicas"] if one["last_read_whole_at_ms"])
    verdicts = ", ".join(f"{count} {word}" for word, count in log["verdicts"].items()) or "none"
    lines = [
        f"Volume {log['volume_id']} of datanode {log['datanode_id']}: entries "
        f"{log['first_entry']} to {log['head'].partition(':')[0]}, {log['entries']} of this time.",
        f"  {whole} replicas were read whole, {log['bytes_read']} bytes in all; "
        f"verdicts: {verdicts}.",
    ]
    if log["longest_wait_ms"]:
        lines.append(
            f"  Between two whole reads, or until the end, no replica waited longer than "
            f"{format_duration(log['longest_wait_ms'] / 1000)} "
            f"(container {log['longest_wait_container_id']})."
        )
    if log["entries_missed"]:
        lines.append(f"  {pluralize(log['entries_missed'], 'entry')} could not be written.")
    for name in ("failures", "repairs", "deletes"):
        lines.append(f"  {len(log[name])} {name}")
        for one in log[name][:SHOWN_MAX]:
            lines.append(f"    {_item_text(one)}")
        if len(log[name]) > SHOWN_MAX:
            lines.append(f"    and {len(log[name]) - SHOWN_MAX} more, in the file")
    return lines


def _item_text(item: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in item.items() if name not in {"entry", "at_ms"}}
    words = ", ".join(f"{name} {value}" for name, value in rest.items())
    return f"{day(item['at_ms'])} (entry {item['entry']}): {words}"


def day(at_ms: int) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC."""
    return f"{datetime.fromtimestamp(at_ms / 1000, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
