"""Host scripts for installing and removing a package, and for a change of the host's Python.

Nothing is started or enabled. Stored data and the control plane's state are always kept.
"""

MAKE = "/opt/suture/make-environment"

INSTALLED = f"""\
systemd-sysusers suture.conf
systemd-tmpfiles --create suture.conf
chgrp suture /etc/suture/agent.toml
{MAKE}
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""
PYTHON_CHANGED = f"""\
{MAKE}
"""
REMOVING = f"""\
[ ! -d /run/systemd/system ] || systemctl stop suture-scm-backup.timer \\
    suture-agent.service suture-scm.service suture-ozone-scrub.service
{MAKE} remove
"""
REMOVED = """\
# Bytes and the control plane's state below /var/lib stay, also on purge.
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""
VERIFY_INSTALLED = f"""\
{MAKE}
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""
VERIFY_REMOVING = """\
[ ! -d /run/systemd/system ] || systemctl stop suture-verify.timer suture-verify.service
"""
VERIFY_REMOVED = f"""\
# The other package may be gone already; results below /var/lib stay.
[ ! -x {MAKE} ] || {MAKE}
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""


def indented(script: str) -> str:
    """Return a script as the body of an `if`."""
    return "".join(f"    {line}" for line in script.splitlines(keepends=True))
