"""The image and the cluster of it: without root, without a compiler, with everything in it."""

import gzip
import hashlib
import json
import os
import re
import shlex
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.config.loading import load
from scm.state import options as scm_options
from tests.support.packaging.commands import BIN, faults_of
from tests.support.packaging.tidy import PRODUCT_PACKAGES
from tools import make_image
from tools.packages import oci, stage

ROOT = Path(__file__).resolve().parents[2]
FILE = (ROOT / "Containerfile").read_text()
STAGES = dict(re.findall(r"^FROM .+ AS (.+)\n((?:(?!FROM ).*\n)*)", FILE, re.MULTILINE))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DATANODES = ("datanode1", "datanode2", "datanode3")
SERVERS = ("scm", *DATANODES)


class TestContainerfile:
    """The image."""

    def test_image_has_every_package_of_the_product(self) -> None:
        """The packages copied into the build are those of the wheel, and .containerignore
        excludes none.
        """
        copied = set(re.findall(r"^COPY (\w+) \1$", STAGES["build"], re.MULTILINE))
        let_in = set(re.findall(r"^!(\w+)$", (ROOT / ".containerignore").read_text(), re.MULTILINE))

        assert set(PRODUCT_PACKAGES) == copied
        assert copied <= let_in

    def test_images_run_as_nobody_and_have_only_what_they_need(self) -> None:
        """The images run as a numeric user, and have neither compiler nor pip. Only the image of
        the Spark job has Java and Arrow. The default target is that for storage hosts.
        """
        installed = {
            name: set(" ".join(re.findall(r"apt-get install (.+?)(?: \\)?$", text, re.M)).split())
            for name, text in STAGES.items()
        }
        flags = {"--yes", "--no-install-recommends"}

        assert "suture" == list(STAGES)[-1]
        assert {"python3"} == installed["host"] - flags
        assert {"default-jre-headless"} == installed["suture-verify"] - flags
        assert not installed["suture"]
        assert "uninstall --yes pip" in STAGES["build"]
        for name in ("suture", "suture-verify"):
            (user,) = re.findall(r"^USER (.+)$", STAGES[name], re.MULTILINE)
            assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)

    def test_images_have_the_locked_libraries(self) -> None:
        """pip installs only versions and files of the locks, and resolves no dependency itself."""
        for name, lock in (("build", "agent"), ("build-verify", "spark")):
            text = STAGES[name]
            locked = f"install --require-hashes --requirement locks/{lock}.lock"
            installs = re.findall(r"\$\{PIP\} (install .+?)(?: &&|$)", text, re.MULTILINE)
            assert locked in installs
            assert {locked, "install --no-deps /source"} >= set(installs)
            assert text.count(" install ") == len(installs) + text.count("apt-get install")

    def test_image_health_check_fails_without_a_listener(self) -> None:
        """The health check is Python that compiles."""
        (check,) = re.findall(
            r'^    CMD \["python3", "-c", (".+")\]$', STAGES["host"], re.MULTILINE
        )

        code = yaml.safe_load(check).replace("(9861, 9862)", "(1, 2)")
        checked = subprocess.run(
            [BIN / "python", "-c", code], capture_output=True, text=True, timeout=60
        )

        assert (1, "no 200 from /healthz\n") == (checked.returncode, checked.stderr)


class TestArchive:
    """The image as an artifact of the release."""

    def test_archives_of_equal_layers_are_equal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Directory and times do not matter. Every blob has the name of its content, and the
        configuration names the uncompressed layer."""
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
        content = "".join(map(str, range(100_000))).encode()
        targets = []
        for place in ("one", "another"):
            stage.place(tmp_path / place / "layer.tar", content)
            targets.append(tmp_path / f"{place}.tar")
            oci.write(tmp_path / place / "layer.tar", targets[-1], "some:1", "amd64", {"User": "1"})

        assert targets[0].read_bytes() == targets[1].read_bytes()
        files = {}
        with tarfile.open(targets[0]) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                files[member.name] = file.read()
        assert {"imageLayoutVersion": "1.0.0"} == json.loads(files.pop("oci-layout"))
        [named] = json.loads(files.pop("index.json"))["manifests"]
        assert {"org.opencontainers.image.ref.name": "some:1"} == named["annotations"]
        assert {f"blobs/sha256/{hashlib.sha256(b).hexdigest()}": b for b in files.values()} == files
        blobs = {f"sha256:{Path(name).name}": blob for name, blob in files.items()}
        manifest = json.loads(blobs[named["digest"]])
        config = json.loads(blobs[manifest["config"]["digest"]])
        [layer] = manifest["layers"]
        assert content == gzip.decompress(blobs[layer["digest"]])
        assert bytes(4) == blobs[layer["digest"]][4:8], "the time of the compression"
        assert [f"sha256:{hashlib.sha256(content).hexdigest()}"] == config["rootfs"]["diff_ids"]
        assert ("1970-01-02T00:00:00+00:00", {"User": "1"}) == (config["created"], config["config"])
        for each in (named, manifest["config"], layer):
            assert len(blobs[each["digest"]]) == each["size"]

    def test_archive_has_the_configuration_of_the_containerfile(self) -> None:
        """Both images start the same command as the same user, and have the same ports."""
        text = STAGES["host"] + STAGES["suture"]
        said = dict(re.findall(r"^(CMD|ENV|EXPOSE|USER|WORKDIR) (.+)$", text, re.MULTILINE))

        assert make_image.CONFIG == {
            "Cmd": yaml.safe_load(said["CMD"]),
            "Env": [said["ENV"]],
            "ExposedPorts": {f"{port}/tcp": {} for port in said["EXPOSE"].split()},
            "User": said["USER"],
            "WorkingDir": said["WORKDIR"],
        }

    def test_lock_has_version_and_checksum_of_every_package(self) -> None:
        """The lines come from apt's records of the installed packages."""
        records = (
            "Package: two\nVersion: 1:2-3\nDescription: more\n SHA256: 0\nSHA256: 22\n\n"
            "Package: one\nSHA256: 11\nVersion: 1\n\n"
        )
        lines = ["one=1 --hash=sha256:11", "two=1:2-3 --hash=sha256:22"]

        assert lines == make_image.lines_of(records).splitlines()
        locked = make_image.LOCK.read_text().splitlines()
        pattern = re.compile(r"[a-z0-9.+-]+=[^ ]+ --hash=sha256:[0-9a-f]{64}")
        assert [] == [line for line in locked if not pattern.fullmatch(line)]
        assert {line.partition("=")[0] for line in locked} >= set(make_image.INCLUDED)


class TestCompose:
    """The cluster of three hosts."""

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_service_may_do_nothing_special(self, name: str) -> None:
        """
        No capability, no new privileges, nothing of the host but the script that it reads.
        """
        service = SERVICES[name]

        assert ["ALL"] == service["cap_drop"]
        assert ["no-new-privileges:true"] == service["security_opt"]
        assert not {"privileged", "cap_add", "devices", "pid", "ipc", "user"} & service.keys()
        mounted = [volume.split(":")[0] for volume in service["volumes"]]
        assert set(mounted) <= {"./tools/compose/setup.sh", *COMPOSE["volumes"]}

    @pytest.mark.parametrize("name", SERVERS)
    def test_a_server_is_watched_and_keeps_its_data(self, name: str) -> None:
        """The service has a health check, restarts by itself, starts after its certificate is
        there, and has a volume of its own.
        """
        service = SERVICES[name]

        assert "/healthz" in service["healthcheck"]["test"][-1]
        assert "unless-stopped" == service["restart"]
        assert {"setup": {"condition": "service_completed_successfully"}} == service["depends_on"]
        (data,) = (v.split(":")[0] for v in service["volumes"] if ":/var/lib/" in v)
        assert [name] == [n for n in SERVERS if data in " ".join(SERVICES[n]["volumes"])]
        assert f"{name}-options:/etc/suture:ro" in service["volumes"]

    def test_the_authority_is_seen_by_nobody_else(self) -> None:
        """The service that makes certificates has no network, and is the only one with the
        authority's key.
        """
        seen = [name for name, s in SERVICES.items() if "authority:/authority" in s["volumes"]]

        assert ["setup"] == seen
        assert "none" == SERVICES["setup"]["network_mode"]

    def test_commands_exist(self) -> None:
        """The programs of the services have the options that they are given."""
        commands = [
            shlex.join(SERVICES["scm"]["command"]),
            shlex.join(SERVICES["operator"]["command"]),
        ]
        for name in ("suture", "suture-verify"):
            (default,) = re.findall(r"^CMD (.+)$", STAGES[name], re.MULTILINE)
            commands.append(shlex.join(yaml.safe_load(default)))

        assert [] == [fault for command in commands for fault in faults_of(command)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the setup of the cluster makes, run twice."""
    folder = tmp_path_factory.mktemp("cluster")
    for name in (*SERVERS, "operator"):
        (folder / "hosts" / name).mkdir(parents=True)
    set_up(folder)
    return folder


def set_up(folder: Path) -> None:
    """Run the script of the service `setup`."""
    subprocess.run(
        ["/bin/sh", ROOT / "tools/compose/setup.sh", folder],
        check=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
    )


class TestSetup:
    """Certificates and options of the cluster."""

    @pytest.mark.parametrize("name", DATANODES)
    def test_an_agent_takes_its_options(self, folder: Path, name: str) -> None:
        """The options are accepted, have the host's dialled name, and every file that they name
        exists.
        """
        config = load(folder / "hosts" / name / "agent.toml")

        assert (f"{name}:9859", ("scm:9860",)) == (config.node.advertise, tuple(config.node.scm))
        for path in (config.tls.certificate, config.tls.key, config.tls.ca):
            assert path is not None
            assert (folder / "hosts" / name / path.relative_to("/etc/suture")).exists()

    def test_the_control_plane_takes_its_options(self, folder: Path) -> None:
        """The options are accepted, and have certificates."""
        options = scm_options.load(folder / "hosts/scm/scm.toml", {})

        assert "/etc/suture/tls/key.pem" == str(options.tls_key)

    def test_keys_are_for_their_holders(self, folder: Path) -> None:
        """
        Nothing of a host may be read by others, and no key but its own lies there.
        """
        files = [path for path in (folder / "hosts").rglob("*") if path.is_file()]
        keys = [path for path in files if "key" in path.name]

        assert 5 == len(keys)
        assert {0o600} == {file.stat().st_mode & 0o777 for file in files}

    def test_a_second_run_changes_no_certificate(self, folder: Path) -> None:
        """The setup runs at each start of the cluster."""
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

        set_up(folder)

        assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
