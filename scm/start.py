"""The entry point of `suture-scm`.

It installs the signal handlers and then imports the control plane. The imports take seconds on a
slow host. `agent.start` describes the effect of a signal during the imports.
"""

from suture.runtime.standard_streams import open_standard_streams
from suture.runtime.stop_request import StopRequest
from suture.runtime.umask import set_daemon_umask


def main() -> None:
    """Handle SIGTERM, SIGINT and SIGHUP, then run the command line (see `scm.main`)."""
    open_standard_streams()
    set_daemon_umask()
    stop = StopRequest()
    stop.on_signals()
    from scm.main import main as run

    run(stop)


if __name__ == "__main__":
    main()
