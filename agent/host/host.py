"""The agent process of one host: start, change of options, and shutdown.

`agent.host.wiring` builds the parts of the process in the order of their dependencies.
"""

from collections.abc import Sequence

from agent.config.loading import diff_options, with_live
from agent.config.options import AgentConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.external_control_plane import ExternalControlPlane
from agent.host.protocol_servers import MakeServer
from agent.host.wiring import AgentComponents
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.scm import ScmClient
from suture.wire.security.tls import LOOPBACK_ONLY, Security


class AgentProcess:
    """All parts of an agent process."""

    def __init__(
        self,
        config: AgentConfig,
        who: DatanodeIdentity,
        scms: Sequence[ScmClient],
        supervisor: SystemdNotifier,
        *,
        security: Security = LOOPBACK_ONLY,
        server_factories: Sequence[MakeServer] = (),
        leaders: Sequence[ExternalControlPlane] = (),
    ) -> None:
        """Open and recover the store, and bind the gRPC server and those of `server_factories`.
        `leaders` are external control planes, which replace `scms`.

        Raise SutureError if a part cannot be built.
        """
        self.security = security
        self._parts = AgentComponents(
            config,
            who,
            scms,
            supervisor,
            security=security,
            server_factories=server_factories,
            leaders=leaders,
        )

    @property
    def address(self) -> str:
        """Address at which peers and clients reach this agent."""
        return self._parts.address

    @property
    def web_address(self) -> str:
        """Address of the HTTP listener; "" if it is disabled."""
        return self._parts.face.address

    @property
    def protocol_addresses(self) -> list[str]:
        """Addresses of the servers for other protocols."""
        return self._parts.protocol_servers.addresses

    def start(self) -> None:
        """Start the loops and the servers. Call it once."""
        self._parts.loops.start()
        self._parts.server.server.start()
        self._parts.protocol_servers.start()
        self._parts.face.start()

    def reconfigure(self, config: AgentConfig) -> dict[str, bool]:
        """Apply the live options of `config`. Return the options that differ: True if the new value
        is in effect, False if it needs a restart.

        Raise RefusedError, with nothing changed, if the scan interval would be infeasible.
        """
        differences = diff_options(self._parts.config, config)
        effective = with_live(self._parts.config, config)
        self._parts.reconfigure(effective)
        return differences

    def stop(self) -> list[str]:
        """Shut down within the configured time. Return the names of the parts that did not end.
        May be called before `start`.

        First, new calls are refused. Then reconciles stop between two chunks, and the loops end.
        The next start uses the journal to recover changes that were interrupted.
        """
        parts, deadline_s = self._parts, self._parts.config.stop_deadline_s
        parts.stopping.set()
        parts.face.stop()
        parts.requested.stop()
        parts.server.health.enter_graceful_shutdown()
        stopped = parts.server.server.stop(deadline_s / 4)
        servers_stopped = parts.protocol_servers.stop(deadline_s / 4)
        unfinished = parts.handlers.stop(deadline_s / 2)
        unfinished += parts.loops.stop(deadline_s / 4)
        for ended in (stopped, *servers_stopped):
            ended.wait()
        parts.protocol_servers.close()
        parts.executor.shutdown(wait=True, cancel_futures=True)
        parts.writers.shutdown(wait=True, cancel_futures=True)
        parts.disk_writers.shutdown(wait=True)
        if parts.watch is not None:
            parts.watch.close()
        if parts.parity is not None:
            parts.parity.close()
        parts.handlers.close()
        for close in (*(one.close for one in parts.scms), *(one.close for one in parts.leaders)):
            close()
        parts.audit.close()
        parts.scrub.close()
        if not unfinished:
            parts.store.close()
        return unfinished
