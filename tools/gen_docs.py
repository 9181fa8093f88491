"""Generate the reference documents from what the programs declare.

python tools/gen_docs.py            write the files
python tools/gen_docs.py --check    exit 1 if what is committed is not what is declared
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from agent.config.option_docs import document, sample  # noqa: E402
from scm.state import options as scm_options  # noqa: E402
from tools import json_documents, reference  # noqa: E402

GENERATED = {
    "docs/COMMANDS.md": reference.commands,
    "docs/CONFIGURATION.md": lambda: document() + scm_options.document(),
    "docs/EVENTS.md": reference.events,
    "docs/JSON.md": json_documents.document,
    "docs/METRICS.md": reference.metrics,
    "systemd/agent.toml": sample,
}


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    stale = 0
    for name, text in GENERATED.items():
        path = ROOT / name
        if arguments.check:
            if not path.exists() or path.read_text() != text():
                print(f"{name} is not what is declared; run: python tools/gen_docs.py")
                stale = 1
        else:
            path.write_text(text())
            print(f"wrote {name}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
