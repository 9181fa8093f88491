"""A control plane that is not there, or takes connections and never answers, is named."""

import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from suture.client.cluster_client import ClusterClient
from suture.client.writer import WriterSession
from suture.errors import Code, UnavailableError
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2 as pb


def test_scm_that_never_answers_is_named_in_the_error() -> None:
    """Users with several clusters, or a wrong --scm in the environment, see which address is
    meant.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            ScmClient(address, timeout_s=0.1) as scm,
            pytest.raises(UnavailableError, match=f"^the SCM at {address} did not answer in time$"),
        ):
            scm.list_nodes(pb.ListNodesRequest())


def test_silent_scm_is_not_asked_to_end_a_session() -> None:
    """After Ctrl-C or the first timeout, each session of a put would wait for it once more."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with ScmClient(address, timeout_s=0.1) as scm, ClusterClient(address) as client:
            session = WriterSession(scm, client._dial, client._stream)
            with pytest.raises(UnavailableError, match="did not answer in time"):
                session._allocate([10])

            session.finish(close=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda scm: scm.export_snapshot(pb.ExportSnapshotRequest()),
        lambda scm: scm.get_restore_recovery(pb.GetRestoreRecoveryRequest()),
        lambda scm: scm.recover_from_restore(pb.RecoverFromRestoreRequest()),
    ],
    ids=["snapshot", "recovery", "recover"],
)
def test_unreachable_scm_is_named_by_long_calls(
    call: Callable[[ScmClient], object],
) -> None:
    """Long calls have a deadline of their own, and the same error."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with (
            ScmClient(address) as scm,
            pytest.raises(
                UnavailableError,
                match=f"^the SCM at {address} is unavailable: connection refused$",
            ) as caught,
        ):
            call(scm)

    assert Code.UNAVAILABLE is caught.value.code
