"""A real browser that shows a page and reports the width of its layout."""

import re
import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium")
TIMEOUT_S = 120


def shown(address: str, profile: Path, *, width: int = 1400) -> str:
    """Load a page in the browser; return the resulting HTML document. Fail if the browser logs an
    error."""
    found = _run(address, profile, width, "--dump-dom")
    assert "CONSOLE" not in found.stderr, found.stderr
    return found.stdout


def overflow(address: str, profile: Path, *, width: int, within: str = "html") -> int:
    """Return by how many pixels the content of elements `within` a page is wider than the elements,
    in a frame of `width` pixels.

    The page itself runs no script, so a second page shows it in a frame and measures it. Both pages
    are files, and the browser is started with access between files allowed.
    """
    page = profile.parent / "page.html"
    page.write_text(shown(address, profile, width=width), encoding="utf-8")
    around = profile.parent / "frame.html"
    around.write_text(
        f'<iframe src="page.html" style="width:{width}px;height:900px;border:0" '
        f"onload=\"var d=[...this.contentDocument.querySelectorAll('{within}')];"
        'document.title=Math.max(...d.map(e=>e.scrollWidth-e.clientWidth))"></iframe>',
        encoding="utf-8",
    )
    found = _run(
        around.as_uri(), profile, width + 200, "--allow-file-access-from-files", "--dump-dom"
    )
    (title,) = re.findall(r"<title>(-?\d+)</title>", found.stdout)
    return int(title)


def _run(
    address: str, profile: Path, width: int, *options: str
) -> "subprocess.CompletedProcess[str]":
    assert CHROMIUM is not None
    return subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--window-size={width},900",
         "--enable-logging=stderr", f"--user-data-dir={profile}", *options, address],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
