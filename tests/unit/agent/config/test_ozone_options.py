"""An agent among Ozone's datanodes: what cannot be meant is refused at start, with a sentence."""

from pathlib import Path

import pytest

from agent.config.loading import load
from agent.config.ozone import ozone_scms
from suture.errors import Code, RefusedError

LED = {
    "scm": '["ozone://scm1.example:9861", "ozone://scm2.example:9861"]',
    "listen": '"127.0.0.1:9859"',
    "algorithm": '"crc32c"',
    "tls": "allow_plaintext = true",
    "layout": "10",
}


def written(folder: Path, **changes: str) -> Path:
    """Write the config of an agent that Ozone leads, with changes."""
    said = {**LED, **changes}
    path = folder / "agent.toml"
    path.write_text(
        f"""[node]
scm = {said["scm"]}
listen = "127.0.0.1:9870"
[storage]
volumes = ["/a"]
tree_algorithm = {said["algorithm"]}
[ozone]
listen = {said["listen"]}
layout_version = {said["layout"]}
[tls]
{said["tls"]}
"""
    )
    return path


def test_ozones_managers_lead(tmp_path: Path) -> None:
    """There are one or several, each with the prefix."""
    config = load(written(tmp_path))

    assert ("ozone://scm1.example:9861", "ozone://scm2.example:9861") == ozone_scms(config.node.scm)
    alone = load(written(tmp_path, scm='"ozone://[::1]:9861"', tls=""))
    assert ("ozone://[::1]:9861",) == ozone_scms(alone.node.scm)
    assert () == ozone_scms(("scm1.example:9860",))


@pytest.mark.parametrize(
    ("said", "layout"),
    [('"1.4"', 7), ('"2.0"', 8), ('"2.1"', 9), ('"2.2"', 10), ("2.1", 9), ("9", 9), ("11", 11)],
)
def test_layout_version_may_be_named_by_the_version_of_ozone(
    tmp_path: Path, said: str, layout: int
) -> None:
    """Operators know the version of their cluster, and a later layout is a number."""
    assert layout == load(written(tmp_path, layout=said)).ozone.layout_version


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (
            {"scm": '["ozone://scm1.example:9861", "scm2.example:9860"]'},
            "node.scm",
            "an agent is led by Suture's control plane or by Ozone's, never by both",
        ),
        (
            {"tls": 'certificate = "/c.pem"\nkey = "/k.pem"\nca = "/a.pem"'},
            "tls.certificate",
            "without ozone.conf it calls Ozone's SCM in plaintext",
        ),
        (
            {"tls": ""},
            "tls.allow_plaintext",
            "ozone://scm1.example:9861 is not loopback, and Ozone's SCM is spoken to in plaintext",
        ),
        ({"layout": '"3.0"'}, "ozone.layout_version", "expected one of 1.4, 2.0, 2.1, 2.2"),
        ({"layout": "true"}, "ozone.layout_version", "valid integer"),
        ({"listen": '""'}, "ozone.listen", "set ozone.listen"),
        ({"algorithm": '"xxh3_64"'}, "storage.tree_algorithm", "set storage.tree_algorithm to"),
        ({"scm": '"ozone://scm1.example"'}, "node.scm", "should match pattern"),
        ({"scm": '"http://scm1.example:9861"'}, "node.scm", "should match pattern"),
    ],
)
def test_impossible_ozone_config_is_refused_with_the_options(
    tmp_path: Path, changes: dict[str, str], options: str, words: str
) -> None:
    """The error names the options and the remedy."""
    with pytest.raises(RefusedError) as caught:
        load(written(tmp_path, **changes))

    assert Code.INVALID_CONFIG is caught.value.code
    assert options in str(caught.value)
    assert words in str(caught.value)


def test_ozone_config_without_tls_gets_no_hint_about_suture_tls(tmp_path: Path) -> None:
    """Suture's own certificates do not work with Ozone's manager."""
    with pytest.raises(RefusedError) as caught:
        load(written(tmp_path, tls=""))

    assert "suture tls init" not in str(caught.value)


SECURE = '''10
conf = "/etc/ozone"
replication_listen = "0.0.0.0:9886"
certificate_dir = "/var/lib/suture/ozone"'''


def test_secure_cluster_needs_no_plaintext(tmp_path: Path) -> None:
    """Neither the SCM nor the addresses for Ozone are called in plaintext; Suture's own
    certificates may exist, too."""
    tls = 'certificate = "/c.pem"\nkey = "/k.pem"\nca = "/a.pem"'
    for said in ("", tls):
        config = load(written(tmp_path, listen='"0.0.0.0:9859"', layout=SECURE, tls=said))
        assert "/etc/ozone" == config.ozone.conf


@pytest.mark.parametrize("missing", ["replication_listen", "certificate_dir"])
def test_secure_cluster_needs_all_its_options(tmp_path: Path, missing: str) -> None:
    """The error names the missing option."""
    layout = "\n".join(line for line in SECURE.splitlines() if not line.startswith(missing))

    with pytest.raises(RefusedError, match=f"a secure cluster needs ozone.{missing}"):
        load(written(tmp_path, layout=layout, tls=""))


def test_secure_cluster_is_led_by_ozone(tmp_path: Path) -> None:
    """Certificates are renewed by the loop that reports to its SCM."""
    with pytest.raises(RefusedError, match="led by Ozone's SCM: name it with ozone://"):
        load(written(tmp_path, scm='"127.0.0.1:9860"', layout=SECURE, tls=""))
