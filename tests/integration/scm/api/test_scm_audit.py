"""The audit log of the control plane: one line for each change that a caller requests."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scm.api.server import build_server
from scm.api.service import ScmService
from suture.observe.audit import AuditLog
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2
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
