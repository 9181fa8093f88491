"""The audit log of the control plane: one line for each change that a caller requests, and its
list."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scm.api.server import build_server
from scm.api.service import ScmService
from suture.errors import Code, RefusedError
from suture.observe.audit import AuditLog
from suture.wire.clients.scm import ScmClient
from suture.wire.server.audit_handlers import LINES_MAX
from suture.wire.v1 import scm_pb2
from suture.wire.v1.container_pb2 import ListAuditRequest
from tests.support.control.scm_world import ScmWorld, confirm


def test_replacing_put_is_audited_with_its_keys_and_a_new_key_is_not(tmp_path: Path) -> None:
    """Storing new keys is not audited, because nothing is lost by it."""
    audit = AuditLog(tmp_path / "audit.log")
    with ScmWorld(tmp_path / "state").running() as world, ThreadPoolExecutor(4) as executor:
        world.join("dn1", "dn2", "dn3")
        confirm(world, "dn1", "dn2", "dn3")
        world.control.tick()
        built = build_server(ScmService(world.control), "127.0.0.1:0", executor, audit=audit)
        built.server.start()
        key = scm_pb2.KeyInfo(key="report.pdf")
        with ScmClient(built.address) as client:
            client.commit_key(scm_pb2.CommitKeyRequest(client_id="a", keys=[key]))
            client.commit_key(scm_pb2.CommitKeyRequest(client_id="a", keys=[key], replace=True))
        built.server.stop(0).wait()
    audit.close()

    [line] = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
    assert ("CommitKey", "OK", ["report.pdf"]) == (line["action"], line["result"], line["keys"])


def test_long_audit_log_is_listed_from_its_newest_lines(tmp_path: Path) -> None:
    """Lists that the log cut may contain the object, and are listed with it. Half a line, which a
    full disk leaves, is passed over."""
    audit = AuditLog(tmp_path / "audit.log")
    audit.record("DeleteKeys", "OK", who="ann", keys=["other"])
    audit.record("DeleteKeys", "OK", who="ann", keys=["other"], keys_count=21)
    for _ in range(LINES_MAX):
        audit.record("DeleteKeys", "OK", who="bob", keys=["report/1"])
    audit.record("command delete", "OK", who="scm", container_id=7)
    audit.close()
    with (tmp_path / "audit.log").open("a") as file:
        file.write('{"event": "audit", "at": "2026')
    with ScmWorld(tmp_path / "state").running() as world, ThreadPoolExecutor(4) as executor:
        built = build_server(ScmService(world.control), "127.0.0.1:0", executor, audit=audit)
        built.server.start()
        with ScmClient(built.address) as client:
            everything = client.list_audit(ListAuditRequest())
            about = client.list_audit(ListAuditRequest(object="report/"))
        built.server.stop(0).wait()

    assert (LINES_MAX, 2) == (len(everything.lines), everything.left_out_count)
    assert {"bob"} == {json.loads(line)["who"] for line in everything.lines}
    assert (LINES_MAX, 1) == (len(about.lines), about.left_out_count)


def test_audit_log_in_the_journal_is_not_listed(tmp_path: Path) -> None:
    """The error says which option gives the log a file."""
    audit = AuditLog()
    with ScmWorld(tmp_path / "state").running() as world, ThreadPoolExecutor(4) as executor:
        built = build_server(ScmService(world.control), "127.0.0.1:0", executor, audit=audit)
        built.server.start()
        with ScmClient(built.address) as client, pytest.raises(RefusedError) as caught:
            client.list_audit(ListAuditRequest())
        built.server.stop(0).wait()

    assert (Code.INELIGIBLE, True) == (caught.value.code, "audit_file" in caught.value.hint)
