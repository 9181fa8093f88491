"""Reports about the disks of this host: SMART counters, and lines of the kernel's log.

The reports are created only on request, when an operator collects evidence. If a source is missing,
or readable only for root, the report contains the reason.
"""

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from agent.store.files.devices import block_device, disks_of
from agent.store.index.facts import VolumeFacts
from suture.wire.v1 import datanode_pb2 as pb

TIMEOUT_S: Final = 10.0
LINES_MAX: Final = 100
OUTPUT_CHARS_MAX: Final = 200_000
SMART: Final = ("smartctl", "--json", "--all")
KERNEL_LOGS: Final = (
    ("journalctl", "--dmesg", "--no-pager", "--lines=20000", "--output=short-iso"),
    ("dmesg", "--ctime"),
)
ON_NO_DISK: Final = "this volume is on no disk that the kernel names: memory, network, or a union"

Run = Callable[[Sequence[str]], tuple[int, str, str]]
"""Function that runs a program and returns its exit code, stdout and stderr.

It raises OSError or TimeoutExpired.
"""


def run(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a program that only reads, and return its exit code, stdout and stderr."""
    done = subprocess.run(  # noqa: S603 - known programs, and names that the kernel gave
        words, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout[:OUTPUT_CHARS_MAX], done.stderr[:1_000]


def disk_reports(
    volumes: Sequence[VolumeFacts],
    *,
    run: Run = run,
    device_of: Callable[[Path], Path | None] = block_device,
) -> list[pb.DiskReport]:
    """Return a report about each disk of each volume."""
    reports = []
    for volume in volumes:
        device = device_of(Path(volume.path))
        about = {"volume_id": volume.volume_id, "path": str(volume.path)}
        if device is None:
            reports.append(pb.DiskReport(**about, smart_error=ON_NO_DISK, kernel_error=ON_NO_DISK))
        for disk in disks_of(device) if device is not None else ():
            smart, smart_error = _smart(disk, run)
            names = {disk, device.name} if device is not None else {disk}
            lines, kernel_error = _kernel_lines(names, run)
            reports.append(
                pb.DiskReport(
                    **about,
                    disk=disk,
                    smart=smart,
                    smart_error=smart_error,
                    kernel_lines=lines,
                    kernel_error=kernel_error,
                )
            )
    return reports


def _smart(disk: str, run: Run) -> tuple[str, str]:
    """Return the JSON document of smartctl about a disk, and "".

    If smartctl returns no document, return "" and the reason.
    """
    try:
        code, out, err = run([*SMART, f"/dev/{disk}"])
    except FileNotFoundError:
        return "", "smartctl is not installed (package smartmontools)"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"smartctl did not answer: {error}"
    try:
        document: dict[str, Any] = json.loads(out)
    except ValueError:
        return "", f"smartctl says nothing that can be read (exit code {code}): {err.strip()}"
    messages = [m.get("string", "") for m in document.get("smartctl", {}).get("messages", [])]
    if code & 0b11:  # bits 0 and 1: bad command line, device not opened
        why = "; ".join(messages) or err.strip() or f"exit code {code}"
        return "", f"smartctl cannot ask /dev/{disk}: {why}; it may need root"
    return out, ""


def _kernel_lines(names: set[str], run: Run) -> tuple[list[str], str]:
    """Return the newest lines of the kernel log that name one of the disks, and "".

    If the log cannot be read, return an empty list and the reason.
    """
    word = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b")
    failures = []
    for words in KERNEL_LOGS:
        try:
            code, out, err = run(words)
        except FileNotFoundError:
            failures.append(f"{words[0]} is not installed")
            continue
        except (OSError, subprocess.TimeoutExpired) as error:
            failures.append(f"{words[0]}: {error}")
            continue
        if code or not out.strip():
            failures.append(f"{words[0]}: {err.strip() or 'nothing that this user may read'}")
            continue
        return [line for line in out.splitlines() if word.search(line)][-LINES_MAX:], ""
    return [], "; ".join(failures) + "; it may be for root, or group systemd-journal or adm, only"
