"""The agent process of one host: start, change of options, and shutdown.

`agent.host.wiring` builds the parts of the process in the order of their dependencies.
"""

from agent.config.loading import diff_options, with_live
from agent.config.options import AgentConfig
from agent.host.wiring import AgentComponents


class AgentProcess(AgentComponents):
    """The parts of an agent process, and what is done with all of them."""

    @property
    def web_address(self) -> str:
        """Address of the HTTP listener; "" if it is disabled."""
        return self.face.address

    @property
    def protocol_addresses(self) -> list[str]:
        """Addresses of the servers for other protocols."""
        return self.protocol_servers.addresses

    def start(self) -> None:
        """Start the loops and the servers. Call it once."""
        self.loops.start()
        self.server.server.start()
        self.protocol_servers.start()
        self.face.start()

    def reconfigure(self, config: AgentConfig) -> dict[str, bool]:
        """Apply the live options of `config`. Return the options that differ: True if the new value
        is in effect, False if it needs a restart.

        Raise RefusedError, with nothing changed, if the scan interval would be infeasible.
        """
        differences = diff_options(self.config, config)
        effective = with_live(self.config, config)
        self.scrub.reconfigure(effective.scan)
        self.housekeeper.keep_for(effective.storage.quarantine_keep_s)
        self.config = effective
        return differences

    def stop(self) -> list[str]:
        """Shut down within the configured time. Return the names of the parts that did not end.
        May be called before `start`.

        First, new calls are refused. Then reconciles stop between two chunks, and the loops end.
        The next start uses the journal to recover changes that were interrupted.
        """
        deadline_s = self.config.stop_deadline_s
        self.stopping.set()
        self.face.stop()
        self.requested.stop()
        self.server.health.enter_graceful_shutdown()
        stopped = self.server.server.stop(deadline_s / 4)
        servers_stopped = self.protocol_servers.stop(deadline_s / 4)
        unfinished = self.handlers.stop(deadline_s / 2)
        unfinished += self.loops.stop(deadline_s / 4)
        for ended in (stopped, *servers_stopped):
            ended.wait()
        self.protocol_servers.close()
        self.executor.shutdown(wait=True, cancel_futures=True)
        self.writers.shutdown(wait=True, cancel_futures=True)
        self.disk_writers.shutdown(wait=True)
        if self.watch is not None:
            self.watch.close()
        if self.parity is not None:
            self.parity.close()
        self.handlers.close()
        for close in (*(one.close for one in self.scms), *(one.close for one in self.leaders)):
            close()
        self.audit.close()
        self.scrub.close()
        if not unfinished:
            self.store.close()
        return unfinished
