"""Mutual TLS at a real server: who gets in, who does not, and certificates that change."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent.services.limits import DatanodeServerLimits
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.observe.audit import AuditLog
from suture.wire.clients.block_peer import PeerTimeouts
from suture.wire.clients.channel import call, open_channel
from suture.wire.clients.peer import Peer
from suture.wire.mapping.rpc_services import DATANODE, Stub
from suture.wire.security import pki
from suture.wire.security.caller import Role, check_own
from suture.wire.security.tls import LOOK_INTERVAL_S, Certificates, Security, TlsFiles, TlsMaterial
from suture.wire.server.authorization import AuthorizationMiddleware
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.authority import Authority
from tests.support.clock import FakeClock
from tests.support.heard import logged
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CONTAINER
from tests.support.waiting import wait_until

QUICK = PeerTimeouts(call_s=5.0, tree_s=5.0, chunk_s=5.0)
WAIT_S = 20.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority of this cluster."""
    return Authority(tmp_path / "tls")


@pytest.fixture
def datanode(tmp_path: Path, authority: Authority) -> Iterator[Datanode]:
    """A datanode with a closed container that serves over TLS only, and writes an audit log."""
    made = Datanode("dn1", tmp_path / "store")
    made.replica.create()
    audit = AuditLog(tmp_path / "audit.jsonl")
    made.serve(security=authority.security("dn1", Role.PEER), audit=audit)
    yield made
    made.close()
    audit.close()


def refusal(work: Callable[[], object]) -> SutureError:
    """Return the error that `work` ends in."""
    with pytest.raises(SutureError) as caught:
        work()
    return caught.value


class TestHandshake:
    def test_a_peer_reads_what_an_operator_may_not_push(
        self, datanode: Datanode, authority: Authority
    ) -> None:
        """
        Over TLS calls work as before, each by the role that may make it.
        """
        with Peer(datanode.address, security=authority.security("dn2", Role.PEER)) as peer:
            assert (
                peer.summary(CONTAINER).root == datanode.replica.store.view(CONTAINER).tree().root
            )
        with Peer(datanode.address, security=authority.security("ada", Role.ADMIN)) as admin:
            assert [] == admin.findings(CONTAINER)
            pushed = refusal(
                lambda: admin.import_container(iter(()), timeout_s=5.0, must_end=lambda: False)
            )
        assert Code.PERMISSION_DENIED == pushed.code

    def test_handshake_without_a_certificate_of_the_authority_fails(
        self, datanode: Datanode, authority: Authority, tmp_path: Path
    ) -> None:
        """No call is answered without a certificate, with an expired one, with one of another
        authority or in plaintext. A client that has only the authority's own certificate is
        rejected, too.
        """
        stranger = Authority(tmp_path / "strange", "Strange CA").issue("eve", Role.ADMIN)
        impostors = {
            "plaintext": Security(),
            "expired": Security(
                Certificates(authority.issue("old", Role.ADMIN, age_days=3, days=2))
            ),
            "foreign": Security(Certificates(replace(stranger, ca=authority.ca))),
        }

        for name, security in impostors.items():
            with Peer(datanode.address, timeouts=QUICK, security=security) as peer:
                assert Code.UNAVAILABLE == refusal(peer.status).code, name
        roots = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        with grpc.secure_channel(datanode.address, roots) as bare:
            stub = Stub(bare, DATANODE)
            ask = lambda: call(stub.Status, pb.StatusRequest(), timeout_s=5.0)  # noqa: E731
            assert Code.UNAVAILABLE == refusal(ask).code

    @pytest.mark.parametrize(
        ("roles", "hosts", "age_days"),
        [
            ((Role.ADMIN, Role.CLIENT), ("127.0.0.1",), 0),
            ((Role.PEER,), ("dn2.example.org", "10.1.1.1"), 0),
            ((Role.PEER,), ("127.0.0.1",), 20),
        ],
        ids=["an operator's", "another host's", "expired"],
    )
    def test_a_caller_believes_only_the_server_it_dialled(
        self,
        tmp_path: Path,
        authority: Authority,
        roles: tuple[Role, ...],
        hosts: tuple[str, ...],
        age_days: int,
    ) -> None:
        """
        A certificate that is not for serving, for another host, or expired is no datanode.
        """
        files = authority.issue("false", *roles, hosts=hosts, age_days=age_days)
        server = Datanode("dn9", tmp_path / "false")
        server.replica.create()
        server.serve(security=Security(Certificates(files)))
        try:
            security = authority.security("ada", Role.ADMIN)
            with Peer(server.address, timeouts=QUICK, security=security) as peer:
                assert Code.UNAVAILABLE == refusal(peer.status).code
        finally:
            server.close()

    def test_health_is_answered_to_any_certificate_that_was_believed(
        self, datanode: Datanode, authority: Authority
    ) -> None:
        """
        A load balancer needs no role, but a certificate.
        """
        with open_channel(datanode.address, authority.security("balancer")) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=5.0)

        assert health_pb2.HealthCheckResponse.SERVING == answer.status

    def test_channel_ignores_proxies_in_the_environment(
        self, datanode: Datanode, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A proxy in the environment is for outgoing traffic and cannot reach datanodes."""
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("no_grpc_proxy", raising=False)

        with open_channel(datanode.address, authority.security("balancer")) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=5.0)

        assert health_pb2.HealthCheckResponse.SERVING == answer.status


class TestRoles:
    def test_refusals_name_the_role_and_are_written_down(
        self, datanode: Datanode, authority: Authority, tmp_path: Path
    ) -> None:
        """The refusal has both roles. The audit log has the caller, the method and the container
        of refused and permitted calls.
        """
        with Peer(datanode.address, security=authority.security("bob", Role.CLIENT)) as client:
            denied = refusal(lambda: list(client.scan(CONTAINER)))
        with Peer(datanode.address, security=authority.security("nobody")) as nobody:
            unknown = refusal(nobody.status)
        with Peer(datanode.address, security=authority.security("ada", Role.ADMIN)) as admin:
            list(admin.scan(CONTAINER))

        assert (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED) == (denied.code, unknown.code)
        assert "ScanContainer is for admin; bob is client" in str(denied)
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        said = [(line["who"], line["action"], line["result"]) for line in lines]
        assert [
            ("bob", "ScanContainer", "PERMISSION_DENIED"),
            ("nobody", "Status", "UNAUTHENTICATED"),
            ("ada", "ScanContainer", "OK"),
        ] == said
        assert (1, ["client"]) == (lines[0]["container_id"], lines[0]["roles"])
        assert lines[0]["place"].startswith("ipv4:127.0.0.1:")

    def test_a_method_outside_the_table_is_for_nobody(self) -> None:
        """An unlisted method is refused, even over plaintext."""

        def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
            return request

        handler = grpc.unary_unary_rpc_method_handler(answer)
        for gate in AuthorizationMiddleware(), AuthorizationMiddleware(knows_callers=False):
            guarded = gate.wrap("/suture.v1.Datanode/Invented", handler)

            assert guarded is not None
            assert (
                Code.PERMISSION_DENIED == refusal(lambda g=guarded: g.unary_unary(b"", None)).code
            )


class TestReload:
    def test_a_new_certificate_and_a_new_authority_need_no_restart(
        self, tmp_path: Path, authority: Authority
    ) -> None:
        """
        Both sides go over to another authority, one step after the other, without a failed call on
        the open channels; then the old authority's certificates are worth nothing.
        """
        following = Authority(tmp_path / "next", "Next CA")
        served = live(authority.issue("dn1", Role.PEER), tmp_path / "served")
        shown = live(authority.issue("ada", Role.ADMIN), tmp_path / "shown")
        late = authority.security("late", Role.ADMIN)
        node = Datanode("dn1", tmp_path / "store")
        node.replica.create()
        server, client = Certificates(served), Certificates(shown)
        node.serve(security=Security(server))
        try:
            with Peer(node.address, timeouts=QUICK, security=Security(client)) as peer:
                peer.findings(CONTAINER)
                both = authority.ca.read_bytes() + following.ca.read_bytes()
                for files in (served, shown):
                    files.ca.write_bytes(both)
                install(following.issue("dn1", Role.PEER), served)
                install(following.issue("ada", Role.ADMIN), shown)
                assert (True, True) == (server.reload(), client.reload())
                peer.findings(CONTAINER)
                for files in (served, shown):
                    files.ca.write_bytes(following.ca.read_bytes())
                assert (True, True) == (server.reload(), client.reload())
                peer.findings(CONTAINER)
            with Peer(node.address, timeouts=QUICK, security=late) as before:
                assert Code.UNAVAILABLE == refusal(lambda: before.findings(CONTAINER)).code
        finally:
            node.close()

    def test_files_that_change_are_noticed_by_the_next_calls(
        self, datanode: Datanode, authority: Authority, tmp_path: Path
    ) -> None:
        """A new certificate needs no signal, and is used within seconds."""
        files = live(authority.issue("bob", Role.CLIENT), tmp_path / "shown")
        with Peer(datanode.address, timeouts=QUICK, security=Security(Certificates(files))) as peer:
            assert Code.PERMISSION_DENIED == refusal(lambda: peer.findings(CONTAINER)).code
            install(authority.issue("bob", Role.ADMIN), files)

            def may() -> bool:
                try:
                    return peer.findings(CONTAINER) == []
                except RefusedError:
                    return False

            wait_until(may)

    def test_a_call_under_way_is_not_cut_off_by_a_new_certificate(
        self, datanode: Datanode, authority: Authority, tmp_path: Path
    ) -> None:
        """
        A stream that began on the old channel ends there; only then is the channel closed.
        """
        files = live(authority.issue("dn2", Role.PEER), tmp_path / "shown")
        certificates = Certificates(files)
        with Peer(datanode.address, security=Security(certificates)) as peer:
            request = pb.ReadBlockRequest()
            request.block_id.container_id, request.block_id.local_id = CONTAINER, 1
            under_way = peer.stub.ReadBlock(request)
            first = next(under_way)
            for _ in range(2):
                install(authority.issue("dn2", Role.PEER), files)
                assert certificates.reload()
                peer.summary(CONTAINER)

            rest = list(under_way)

        assert first.chunk.length == len(first.data)
        assert [rest[0].chunk.length] == [len(piece.data) for piece in rest]

    def test_files_that_do_not_fit_change_nothing(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        """
        A key of another certificate, half a file, or one that is gone: the old material stays, the
        error names the file, and nothing of a key is in it.
        """
        files = live(authority.issue("dn1", Role.PEER), tmp_path / "live")
        certificates = Certificates(files)
        before = certificates.material
        other = authority.issue("dn2", Role.PEER)
        good = files.key.read_bytes()

        shutil.copyfile(other.key, files.key)
        assert f"{files.key} is not the key of" in str(refusal(certificates.reload))
        files.key.write_bytes(good[:100])
        half = refusal(certificates.reload)
        files.key.unlink()
        gone = refusal(certificates.reload)

        assert "unencrypted key" in str(half)
        assert f"cannot read {files.key}" in str(gone)
        assert before is certificates.material
        assert "PRIVATE" not in repr(before)
        assert LOOK_INTERVAL_S > 0

    def test_certificate_that_is_not_valid_yet_is_loaded_later(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        """The certificate was issued on a host whose clock is ahead. The files do not change
        again, and the old certificate expires.
        """
        clock = FakeClock(int(pki.now().timestamp() * 1000))
        files = live(authority.issue("dn1", Role.PEER, age_days=1), tmp_path / "live")

        def inspect(material: TlsMaterial) -> None:
            check_own(material.certificate, Role.PEER, clock.now_ms() / 1000)

        certificates = Certificates(files, inspect=inspect, monotonic_s=clock.monotonic_s)
        before = certificates.material
        install(authority.issue("dn1", Role.PEER, age_days=-1), files)
        with logged() as said:
            for _ in range(100):
                clock.advance_s(LOOK_INTERVAL_S)
                assert before is certificates.material
        assert ["certificate_reload_failed"] == [line["event"] for line in said]
        assert "is not valid yet" in said[0]["error"]

        clock.advance_s(86_400)

        assert files.certificate.read_bytes() == certificates.material.certificate

    def test_certificate_files_that_failed_to_read_are_read_again(
        self, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No descriptor was free, or the disk failed, just after a renewal. The files are good,
        and do not change again.
        """
        clock = FakeClock()
        files = live(authority.issue("dn1", Role.PEER), tmp_path / "live")
        certificates = Certificates(files, monotonic_s=clock.monotonic_s)
        install(authority.issue("dn1", Role.PEER), files)

        def refuse(*_arguments: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", refuse)
            assert "Too many open files" in str(refusal(certificates.reload))
        clock.advance_s(LOOK_INTERVAL_S)

        assert files.certificate.read_bytes() == certificates.material.certificate

    def test_explicit_reload_logs_its_result_each_time(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        """The log shows whether the files are valid, also for files that were refused before."""
        files = live(authority.issue("dn1", Role.PEER), tmp_path / "live")
        security = Security(Certificates(files))
        files.key.write_bytes(files.key.read_bytes()[:100])

        with logged() as said:
            security.reload()
            security.reload()

        assert ["certificate_reload_failed"] * 2 == [line["event"] for line in said]


class TestPermissions:
    @pytest.mark.parametrize(
        ("name", "mode"), [("key", 0o644), ("key", 0o660), ("certificate", 0o666), ("ca", 0o664)]
    )
    def test_files_that_others_could_use_are_refused(
        self, authority: Authority, name: str, mode: int
    ) -> None:
        """
        A key that others may read, or a certificate that others may write, starts nothing.
        """
        files = authority.issue("dn1", Role.PEER)
        getattr(files, name).chmod(mode)

        refused = refusal(lambda: Certificates(files))

        assert Code.INVALID_CONFIG == refused.code
        assert f"{getattr(files, name)}: its mode {mode:04o}" in str(refused)
        assert "chmod" in refused.hint

    @pytest.mark.parametrize("address", ["10.0.0.1:9859", "example.org:1", "[2001:db8::1]:1"])
    def test_plaintext_stays_on_this_machine_unless_it_is_allowed(self, address: str) -> None:
        """
        Without certificates, a server elsewhere than on loopback does not start, and no other host
        is called; with permission both are done.
        """
        for work in (
            lambda: Security().server_credentials(address),
            lambda: Peer(address),
        ):
            refused = refusal(work)
            assert Code.INVALID_CONFIG == refused.code
            assert f"{address} without TLS" in str(refused)
        assert Security(allow_plaintext=True).server_credentials(address) is None
        Peer(address, security=Security(allow_plaintext=True)).close()

    def test_a_caller_beyond_its_allowance_is_told_to_wait(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        """
        A caller that never pauses is refused as BUSY; another one has its own allowance.
        """
        node = Datanode("dn1", tmp_path / "store")
        node.replica.create()
        limits = DatanodeServerLimits(calls_per_s_max=1)
        node.serve(security=authority.security("dn1", Role.PEER), limits=limits)
        ada, bob = (authority.security(name, Role.ADMIN) for name in ("ada", "bob"))
        try:
            with (
                Peer(node.address, security=ada) as peer,
                Peer(node.address, security=bob) as other,
            ):
                said = [answer_of(peer.stub) for _ in range(10)]
                assert Code.BUSY in {getattr(answer, "code", None) for answer in said}
                assert [] == other.findings(CONTAINER)
        finally:
            node.close()

    def test_connections_are_counted(self, tmp_path: Path) -> None:
        """
        Beyond the limit a connection is closed at once; when others end there is room again.
        """
        node = Datanode("dn1", tmp_path)
        node.replica.create()
        node.serve(limits=DatanodeServerLimits(connections_max=2))
        try:
            first, second, third = (connected(node.address, n) for n in range(3))
            assert (True, True) == (is_answered(first), is_answered(second))
            assert not is_answered(third)
            first.close()
            wait_until(lambda: is_answered(third))
            second.close()
            third.close()
        finally:
            node.close()


def connected(address: str, number: int) -> grpc.Channel:
    """Return a channel that shares its connection with no other."""
    own = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200 + number)]
    return grpc.insecure_channel(address, own)


def is_answered(channel: grpc.Channel) -> bool:
    """Whether a question is answered on this channel."""
    stub = Stub(channel, DATANODE)
    try:
        call(stub.ListFindings, pb.ListFindingsRequest(), timeout_s=1.0)
    except UnavailableError:
        return False
    return True


def answer_of(stub: Stub) -> object:
    """Return the answer to one question, or the error."""
    try:
        return call(stub.ListFindings, pb.ListFindingsRequest(), timeout_s=5.0)
    except UnavailableError as error:
        return error


def live(files: TlsFiles, directory: Path) -> TlsFiles:
    """Copy the files to where a process would have them."""
    directory.mkdir()
    target = TlsFiles(directory / "me.pem", directory / "me.key", directory / "ca.pem")
    shutil.copyfile(files.ca, target.ca)
    install(files, target)
    return target


def install(files: TlsFiles, target: TlsFiles) -> None:
    """Replace certificate and key as an operator would: each by renaming."""
    for source, path in ((files.certificate, target.certificate), (files.key, target.key)):
        fresh = path.with_suffix(".new")
        shutil.copy(source, fresh)
        fresh.replace(path)
