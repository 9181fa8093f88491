"""Commands `tls init`, `issue` and `show` for a private certificate authority and its
certificates."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from suture.config.quantity import format_duration
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import pluralize, print_json, print_line, print_note, print_rows
from suture.terminal.typer_options import argument, option
from suture.wire.security import pki
from suture.wire.security.caller import Role

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

DAYS_MAX: Final = 3650
SOON_DAYS: Final = 30

DirectoryArgument = Annotated[
    Path, argument("DIR", "Directory of the authority and its certificates.")
]


@app.command("init")
def init(
    directory: DirectoryArgument,
    name: Annotated[str, option("NAME", "Issuer name in certificates.")] = "Suture CA",
    days: Annotated[
        int, option("N", "Validity of the authority, in days.", min=1, max=DAYS_MAX)
    ] = DAYS_MAX,
) -> int:
    """Create a private certificate authority.

    Its key can sign any certificate of the cluster. Keep it off the cluster's hosts.

    Example:
        suture tls init /srv/ca
    """
    path = pki.create_authority(directory, name=name, days=days, now=pki.now())
    if is_json():
        print_json({"certificate": str(path), "key": str(path.with_suffix(".key"))})
        return ExitCode.OK
    expires_at = pki.describe_certificates(path)[0].expires_at
    print_line(f"{path}: the authority, believed until {day(expires_at)}")
    print_line(
        f"{path.with_suffix('.key')}: its key (mode 0600); keep it here, and a copy elsewhere"
    )
    print_line(f"next: suture tls issue {directory} --role scm --host NAME")
    return ExitCode.OK


@app.command("issue")
def issue(
    directory: DirectoryArgument,
    role: Annotated[list[Role], option("ROLE", "Role of the holder; may be repeated.")],
    host: Annotated[
        list[str] | None, option("NAME|IP", "Host name or IP of the holder; may be repeated.")
    ] = None,
    name: Annotated[str, option("NAME", "Name of the certificate; default: the first host.")] = "",
    node: Annotated[
        str, option("ID", "Datanode id; default: id in the old certificate, or new id.")
    ] = "",
    days: Annotated[
        int, option("N", "Validity of the certificate, in days.", min=1, max=DAYS_MAX)
    ] = 365,
) -> int:
    """Issue a certificate and its private key.

    A certificate that was issued earlier under the same name is replaced, with its key.

    Example:
        suture tls issue /srv/ca --role scm --host scm1.example.org
    """
    hosts = list(host or ())
    order = pki.CertificateRequest(
        name=name or (hosts[0] if hosts else role[0].value),
        roles=list(dict.fromkeys(role)),
        hosts=hosts,
        node_id=node,
        days=days,
    )
    certificate, key = pki.issue(directory, order, now=pki.now())
    what = pki.describe_certificates(certificate)[0]
    if is_json():
        print_json({"certificate": str(certificate), "key": str(key), **document(what)})
        return ExitCode.OK
    print_line(f"{certificate}: {' and '.join(what.roles)}, until {day(what.expires_at)}")
    if what.node_id:
        print_line(f"it is for datanode {what.node_id}, dialled as {', '.join(what.hosts)}")
    print_line(f"{key}: its key (mode 0600); bring both and {directory / 'ca.pem'} to its holder")
    return ExitCode.OK


@app.command("show")
def show_certificates(
    paths: Annotated[list[Path], argument("FILE|DIR", "PEM files, or directories of PEM files.")],
) -> int:
    """Show the owner and the expiry of certificates.

    Exit codes:
        2: a certificate expires within 30 days

    Example:
        suture tls show /etc/suture/tls
    """
    files = [
        file for path in paths for file in (sorted(path.glob("*.pem")) if path.is_dir() else [path])
    ]
    found = [(file, what) for file in files for what in pki.describe_certificates(file)]
    if not found:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot find a certificate in {', '.join(map(str, paths))}",
            hint="in a directory, only files named *.pem are read",
        )
    now = pki.now()
    if is_json():
        known = [{"file": str(file), **document(what)} for file, what in found]
        print_json({"certificates": known})
    else:
        columns = ["file", "name", "roles", "hosts", "datanode", "issuer", "expiry"]
        rows = [
            (
                file,
                what.name,
                "authority" if what.is_ca else " ".join(what.roles) or "none",
                " ".join(what.hosts) or "-",
                what.node_id or "-",
                what.issuer,
                expiry(what.expires_at, now),
            )
            for file, what in found
        ]
        print_rows(columns, rows)
    late = [what for _, what in found if (what.expires_at - now).days < SOON_DAYS]
    if late and not is_json():
        print_note(f"{pluralize(len(late), 'certificate')} to be issued again soon")
    return ExitCode.TO_DO if late else ExitCode.OK


def document(what: pki.CertificateInfo) -> dict[str, object]:
    """Return a certificate as a JSON document."""
    return {
        "name": what.name,
        "issuer": what.issuer,
        "roles": list(what.roles),
        "datanode_id": what.node_id,
        "hosts": list(what.hosts),
        "is_authority": what.is_ca,
        "begins_at": what.begins_at.isoformat(),
        "expires_at": what.expires_at.isoformat(),
        "serial": what.serial,
        "sha256": what.fingerprint,
    }


def day(at: datetime) -> str:
    """Return a date as text, for example "2026-11-30"."""
    return f"{at:%Y-%m-%d}"


def expiry(at: datetime, now: datetime) -> str:
    """Return the date on which a certificate expires, and the time until or since then, as text."""
    left_s = (at - now).total_seconds()
    if left_s <= 0:
        return f"{day(at)}, expired {format_duration(-left_s)} ago"
    return f"{day(at)}, in {format_duration(left_s)}"
