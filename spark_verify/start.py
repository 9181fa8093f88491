"""How `suture-verify` begins: without the extra `spark` it ends with a sentence."""

import os
import sys
from typing import Final

from spark_verify.exits import Exit

OF_THE_EXTRA: Final = frozenset({"jinja2", "pandas", "pyarrow", "pyspark"})


def main() -> None:
    """Import the job and run it; some packages are imported only where they are needed.

    Arrow reads once, at its import, where it gets its memory. What it would take by itself gives
    pages back to the kernel at once, and a verification asks for the same again and again.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        from spark_verify.job import main as run

        run()
    except KeyboardInterrupt:  # while packages are imported: later it is the command's
        sys.exit(Exit.INTERRUPTED)
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
