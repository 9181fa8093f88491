"""Entry point of `suture-agent`: installs signal handlers first, then imports the agent.

The imports take seconds on a small host. Without a handler, SIGHUP would end the process meanwhile.
Process 1 of a container would lose SIGTERM, because the kernel drops its unhandled signals.
"""

from suture.runtime.standard_streams import open_standard_streams
from suture.runtime.stop_request import StopRequest
from suture.runtime.umask import set_daemon_umask


def main() -> None:
    """Handle SIGTERM, SIGINT and SIGHUP from now on, then run the agent's command line."""
    open_standard_streams()
    set_daemon_umask()
    stop = StopRequest()
    stop.on_signals()
    from agent.main import main as run

    run(stop)


if __name__ == "__main__":
    main()
