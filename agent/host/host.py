"""The agent process of one host: start, change of options, shutdown.

`agent.host.wiring` creates the parts of the process in the order of their dependencies.
"""

from agent.config.loading import diff_options, with_live
from agent.config.options import AgentConfig
from agent.host.wiring import AgentComponents


class AgentProcess(AgentComponents):
    """The parts of an agent process, with methods that start, reconfigure and stop all of them."""

    @property
    def web_address(self) -> str:
        """Address of the HTTP listener; "" if it is disabled."""
        return self.face.address

    @property
    def protocol_addresses(self) -> list[str]:
        """Addresses of the servers for protocols other than suture.v1."""
        return self.protocol_servers.addresses

    def start(self) -> None:
        """Start all loops and servers. Call this only once."""
        self.loops.start()
        self.server.server.start()
        self.protocol_servers.start()
        self.face.start()

    def reconfigure(self, config: AgentConfig) -> dict[str, bool]:
        """Apply the live options of `config`, which are those that need no restart.

        Return the names of the options that have changed. The value is True if the new value is in
        effect, and False if it needs a restart. Raise RefusedError if the disks are too slow for
        the new scan interval; nothing is then changed.
        """
        differences = diff_options(self.config, config)
        effective = with_live(self.config, config)
        self.scrub.reconfigure(effective.scan)
        self.housekeeper.keep_for(effective.storage.quarantine_keep_s)
        self.config = effective
        return differences

    def stop(self) -> list[str]:
        """Shut down within the configured time. Return the names of the parts that did not stop in
        time.

        This method may be called before `start`. First, new calls are refused. Then reconciles stop
        between two chunks, and the loops end. If a change was interrupted, the next start recovers
        it from the journal.
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
