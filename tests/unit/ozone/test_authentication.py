"""Names and homes of a user id that has no passwd entry, as containers run under."""

import os
import pwd
from pathlib import Path

import pytest

from ozone.clients.authentication import HadoopIdentity, choose
from ozone.scrub.scrub import default_state_dir
from suture.errors import Code, RefusedError

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "XDG_STATE_HOME")
UNKNOWN_UID = 54_321


@pytest.fixture(autouse=True)
def _unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "geteuid", lambda: UNKNOWN_UID)
    monkeypatch.setattr(os, "getuid", lambda: UNKNOWN_UID)


def test_user_id_without_a_name_is_the_name_that_hadoop_receives() -> None:
    """Hadoop takes any text, and its audit log then shows the number."""
    assert HadoopIdentity("54321") == choose("")


def test_named_user_is_used_without_asking_the_system() -> None:
    """`--user` wins."""
    assert HadoopIdentity("om") == choose("om")


def test_state_directory_of_a_user_without_home_is_refused_with_the_option() -> None:
    """There is no place to choose, so the error names the option."""
    with pytest.raises(RefusedError) as refusal:
        default_state_dir()

    assert (Code.INVALID_CONFIG, "choose a directory with --state-dir") == (
        refusal.value.code,
        refusal.value.hint,
    )


def test_state_directory_of_a_user_without_passwd_entry_is_below_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HOME is enough."""
    monkeypatch.setenv("HOME", "/srv/job")

    assert Path("/srv/job/.local/state/suture-ozone") == default_state_dir()
