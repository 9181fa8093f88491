"""What makes an agent a datanode among Ozone's: the one module that the agent imports, if told to.

`agent.main` asks for it when section `[ozone]` of the config says so, and hands the doors to the
host. Nothing else of the agent knows Ozone.
"""

from collections.abc import Sequence

from agent.config.ozone import OzoneConfig
from agent.host.doors import Door, Inside, MakeDoor
from ozone.serving.door import OzoneDoor


def doors(config: OzoneConfig) -> Sequence[MakeDoor]:
    """Return how the servers of an agent for Ozone are made."""

    def made(inside: Inside) -> Door:
        return OzoneDoor(inside, config.listen)

    return (made,) if config.listen else ()
