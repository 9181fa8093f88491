"""Runs an agent in this process that is controlled by stand-ins of Ozone's SCM."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from agent.config.loading import load
from agent.config.options import AgentConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId, ReplicaState
from ozone.wiring import make_scm_links, server_factories
from suture.runtime.sd_notify import SystemdNotifier
from tests.support.ozone.standin_scm import CLUSTER_ID

DATANODE_ID = "f1111111-2222-3333-8444-555555555555"
WHO = DatanodeIdentity(DATANODE_ID, CLUSTER_ID, version="1", boot_id=1)
HALVES = (UUID(DATANODE_ID).int >> 64, UUID(DATANODE_ID).int % 2**64)


def written(folder: Path, *addresses: str, interval_s: float = 0.1, more: str = "") -> Path:
    """Write the config of an agent with one volume, controlled by the SCMs at `addresses`; return
    its path."""
    volume = folder / "volume"
    volume.mkdir(parents=True, exist_ok=True)
    named = ", ".join(f'"ozone://{address}"' for address in addresses)
    config = folder / "agent.toml"
    config.write_text(
        f"""[node]
listen = "127.0.0.1:0"
scm = [{named}]
[observe]
listen = "127.0.0.1:0"
[storage]
volumes = ["{volume}"]
tree_algorithm = "crc32c"
reserve_bytes = 1_000_000
[ozone]
listen = "127.0.0.1:0"
heartbeat_interval_s = {interval_s}
{more}
"""
    )
    return config


def built(config: AgentConfig, who: DatanodeIdentity = WHO) -> AgentProcess:
    """Return the agent without starting it."""
    return AgentProcess(
        config,
        who,
        [],
        SystemdNotifier(),
        server_factories=server_factories(config.ozone),
        leaders=make_scm_links(config.node.scm),
    )


@contextmanager
def led_agent(
    folder: Path, *addresses: str, interval_s: float = 0.1, more: str = ""
) -> Iterator[AgentProcess]:
    """Run an agent, and yield it. Fail if a part of the agent does not stop in time."""
    host = built(load(written(folder, *addresses, interval_s=interval_s, more=more)))
    try:
        host.start()
        yield host
    finally:
        assert [] == host.stop()


def store_of(host: AgentProcess) -> ReplicaStore:
    """Return the store of a host, for data that a test writes without a client."""
    return host.store


def state_of(host: AgentProcess, container_id: int) -> ReplicaState:
    """Return the state of a replica."""
    return store_of(host).replica(ContainerId(container_id)).state
