"""The credentials of commands: from options, the environment or a file, in this order of
precedence.

    suture --tls-certificate ann.pem --tls-key ann.key --tls-ca ca.pem status
    SUTURE_TLS_CERTIFICATE=ann.pem SUTURE_TLS_KEY=ann.key SUTURE_TLS_CA=ca.pem suture status
    ~/.config/suture/client.toml, else /etc/suture/client.toml:
        [tls]
        certificate = "~/ann.pem"
        key = "~/ann.key"
        ca = "/etc/suture/tls/ca.pem"

Without credentials, commands use plaintext, and only on this machine.
"""

import os
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suture.config.bounded_read import SETTINGS_BYTES_MAX, decoded, read_file_bounded
from suture.errors import Code, RefusedError
from suture.terminal.common_options import scm_address

if TYPE_CHECKING:
    from suture.client.cluster_client import ClusterClient
    from suture.wire.security.tls import Security

FILE_NAMES: Final = ("certificate", "key", "ca")
SYSTEM_FILE: Final = Path("/etc/suture/client.toml")


@dataclass(frozen=True, slots=True)
class CredentialOptions:
    """The certificate files and the other TLS settings of a command, from the command line or the
    environment."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    allow_plaintext: bool = False
    file: Path | None = None  # file with the other settings

    def has_files(self) -> bool:
        """Return True if at least one certificate file is given."""
        return any(getattr(self, name) is not None for name in FILE_NAMES)


_wanted: ContextVar[CredentialOptions] = ContextVar(
    "wanted",
    default=CredentialOptions(),  # noqa: B039 - it is frozen
)


def choose(wanted: CredentialOptions) -> None:
    """Store the certificate files and TLS settings for all later calls of this command."""
    _wanted.set(wanted)


def is_secured() -> bool:
    """Return True if this command uses a certificate."""
    return _effective().has_files()


def security() -> "Security":
    """Return the TLS settings for calls. Raise RefusedError if the settings or the certificate
    files are invalid."""
    from suture.wire.security.tls import files_of, load_security

    wanted = _effective()
    files = files_of(certificate=wanted.certificate, key=wanted.key, ca=wanted.ca)
    return load_security(files, allow_plaintext=wanted.allow_plaintext)


def connect() -> "ClusterClient":
    """Return a client of the SCM with the address of --scm. It uses the certificate of this
    command."""
    from suture.client.cluster_client import ClusterClient

    return ClusterClient(scm_address(), security=security())


def _effective() -> CredentialOptions:
    """Return the settings of this command. If no certificate file is given, use those that the
    settings file names."""
    wanted = _wanted.get()
    if wanted.has_files():
        return wanted
    path = wanted.file or _default_file()
    if path is None:
        return wanted
    said = _read(path)
    paths = {name: _at_home(said[name]) for name in FILE_NAMES if name in said}
    return CredentialOptions(
        **paths,
        allow_plaintext=wanted.allow_plaintext or bool(said.get("allow_plaintext", False)),
    )


def _default_file() -> Path | None:
    """Return the settings file of the user, or that of the host. Return None if neither exists, or
    if this user has no access to it."""
    home = _at_home(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    candidates = (home / "suture" / "client.toml", SYSTEM_FILE)
    return next((path for path in candidates if _is_seen(path)), None)


def _at_home(path: str) -> Path:
    """Return a path with `~` replaced by the home directory. If the home directory is unknown,
    return the path unchanged."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _is_seen(path: Path) -> bool:
    """Return True if the file exists. Return False if this user must not search its directory."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # imported late, because most users have no settings file

    try:
        values = tomllib.loads(decoded(read_file_bounded(path, bytes_max=SETTINGS_BYTES_MAX)))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RefusedError(Code.INVALID_CONFIG, f"cannot read {path}: {error}") from error
    tls = values.pop("tls", {})
    kinds = dict.fromkeys(FILE_NAMES, str) | {"allow_plaintext": bool}
    wrong = [f"{name}" for name in values]
    if not isinstance(tls, dict):
        wrong, tls = [*wrong, "tls"], {}
    wrong += [
        f"tls.{name}" for name, value in tls.items() if not isinstance(value, kinds.get(name, ()))
    ]
    if wrong:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot read {path}: unknown {', '.join(wrong)}",
            hint="expected certificate, key, ca and allow_plaintext in [tls]",
        )
    return dict(tls)
