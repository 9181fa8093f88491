"""Entry point of `suture-verify`. If the extra `spark` is not installed, it exits with an error."""

import os
import sys
from typing import Final

from suture.runtime.exit_codes import ExitCode

OF_THE_EXTRA: Final = frozenset({"pandas", "pyarrow", "pyspark"})


def main() -> None:
    """Import the job and run it.

    The import is in this function, because a required package may be missing. Arrow's allocator is
    chosen before the import. Arrow's default allocator returns free pages to the kernel
    immediately, but a verification requests the same memory again and again.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        from spark_verify.job import main as run

        run()
    except KeyboardInterrupt:  # Ctrl-C during imports; later, the command handles it
        sys.exit(ExitCode.INTERRUPTED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OF_THE_EXTRA:
            raise
        sys.exit(
            f"error: suture-verify needs the package {package}, which is not installed\n"
            "hint: pip install 'suture[spark]'"
        )


if __name__ == "__main__":
    main()
