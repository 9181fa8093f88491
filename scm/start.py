"""How `suture-scm` begins: without the extra `scm` it ends with a sentence."""

import sys

from agent.errors import lacking


def main() -> None:
    """Import the control plane, then run its command line; see `scm.main`."""
    try:
        from scm.main import main as run
    except ModuleNotFoundError as error:
        told = lacking(error, "suture-scm")
        sys.exit(f"suture-scm: {told} (hint: {told.hint})")
    run()


if __name__ == "__main__":
    main()
