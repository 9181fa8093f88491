"""The entry point of `suture-agent`: handle signals first, then import the agent.

The imports take seconds on a small host. Without a handler SIGHUP ends the process meanwhile, and
process 1 of a container loses SIGTERM, because the kernel drops its unhandled signals.
"""

from suture.runtime.standard_streams import open_standard_streams
from suture.runtime.stop_request import StopRequest
from suture.runtime.umask import set_daemon_umask


def main() -> None:
    """Handle SIGTERM, SIGINT and SIGHUP from now on, then run the command line of the agent."""
    open_standard_streams()
    set_daemon_umask()
    stop = StopRequest()
    stop.on_signals()
    from agent.main import main as run

    run(stop)


if __name__ == "__main__":
    main()
