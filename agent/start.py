"""Entry point of `suture-agent`: installs the signal handlers before it imports the agent.

The imports take seconds on a small host. Without a handler, SIGHUP during the imports would end the
process. SIGTERM would be lost if the agent runs as process 1 of a container, because the kernel
drops signals that process 1 does not handle.
"""

from suture.runtime.standard_streams import open_standard_streams
from suture.runtime.stop_request import StopRequest
from suture.runtime.umask import set_daemon_umask


def main() -> None:
    """Install handlers for SIGTERM, SIGINT and SIGHUP, then run the agent's command line."""
    open_standard_streams()
    set_daemon_umask()
    stop = StopRequest()
    stop.on_signals()
    from agent.main import main as run

    run(stop)


if __name__ == "__main__":
    main()
