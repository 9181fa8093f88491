"""The manifest is checked before a JVM is started."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from spark_verify import job
from spark_verify.errors import SnapshotRefused
from spark_verify.snapshot.manifest import SnapshotManifest, read_manifest
from spark_verify.storage import LocalStorage
from tests.support.printed_json import document_in

GOOD = {
    "schema_version": 5,
    "snapshot_id": "s",
    "as_of_ms": 5,
    "term": 1,
    "cluster_id": "c",
    "rows": {"containers": 1, "replicas": 2, "nodes": 3, "pending_ops": 0},
}
KEY = {"key": "a", "container_ids": [7]}
RISK = {"key_count": 1, "container_count": 1, "keys": [KEY]}


def written(directory: Path, text: str) -> str:
    (directory / "manifest.json").write_text(text)
    return str(directory)


def manifest_in(directory: str) -> SnapshotManifest:
    return read_manifest(LocalStorage(directory))


class TestManifest:
    """Read, or refused with the field named."""

    def test_a_whole_manifest_is_read(self, tmp_path: Path) -> None:
        """
        Every field arrives.
        """
        manifest = manifest_in(written(tmp_path, json.dumps(GOOD)))

        assert (manifest.snapshot_id, manifest.rows["nodes"], manifest.as_of_ms) == ("s", 3, 5)
        assert manifest.keys_at_risk is None

    @pytest.mark.parametrize("text", ["{", "[" * 100_000, "\ufeff{}"])
    def test_manifest_that_is_no_json_is_refused(self, tmp_path: Path, text: str) -> None:
        """Deeply nested JSON is refused, too."""
        with pytest.raises(SnapshotRefused, match="is not JSON"):
            manifest_in(written(tmp_path, text))

    def test_keys_at_risk_arrive(self, tmp_path: Path) -> None:
        """The writer of the snapshot may know the keys."""
        manifest = manifest_in(written(tmp_path, json.dumps(GOOD | {"keys_at_risk": RISK})))

        assert manifest.keys_at_risk is not None
        assert asdict(manifest.keys_at_risk) == {
            "key_count": 1,
            "container_count": 1,
            "keys": [{"key": "a", "container_ids": [7]}],
        }

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"schema_version": 1}, "schema version 1"),
            ({"schema_version": "1"}, "schema_version: .* is '1'"),
            ({"snapshot_id": None}, "snapshot_id: .* valid string, is None"),
            ({"as_of_ms": -1}, "as_of_ms: .* greater than or equal to 0, is -1"),
            ({"term": True}, "term: .* valid integer, is True"),
            ({"term": 2**63}, "term: .* less than or equal to"),
            (
                {"rules": {"maintenance_min": 10**30}},
                "rules.maintenance_min: .* less than or equal to",
            ),
            ({"cluster_id": "\ud800"}, "is not JSON: unexpected end of hex escape"),
            ({"rows": {"containers": 1}}, "no rows of nodes, pending_ops, replicas"),
            ({"keys_at_risk": []}, "keys_at_risk: "),
            (
                {"keys_at_risk": RISK | {"key_count": -1}},
                "keys_at_risk.key_count: .* greater than or equal to 0",
            ),
            ({"keys_at_risk": RISK | {"keys": ["a"]}}, "keys_at_risk.keys.0: "),
            (
                {"keys_at_risk": RISK | {"keys": [{"container_ids": [1]}]}},
                "keys_at_risk.keys.0.key: Field required",
            ),
            (
                {"keys_at_risk": RISK | {"keys": [KEY | {"container_ids": ["1"]}]}},
                "keys_at_risk.keys.0.container_ids.0: .* valid integer",
            ),
        ],
    )
    def test_a_wrong_field_is_named(
        self, tmp_path: Path, change: dict[str, object], word: str
    ) -> None:
        """
        Other version, other type, negative, or absent.
        """
        with pytest.raises(SnapshotRefused, match=word):
            manifest_in(written(tmp_path, json.dumps(GOOD | change)))

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "\udcff"])
    def test_invalid_manifest_is_refused(self, tmp_path: Path, text: str) -> None:
        """Its bytes are torn, foreign or undecodable."""
        (tmp_path / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))

        with pytest.raises(SnapshotRefused, match=r"manifest\.json"):
            manifest_in(str(tmp_path))

    def test_a_missing_snapshot_is_refused(self, tmp_path: Path) -> None:
        """A snapshot without a directory or without a manifest is refused."""
        with pytest.raises(SnapshotRefused, match=r"nowhere has no manifest\.json"):
            manifest_in(str(tmp_path / "nowhere"))
        with pytest.raises(SnapshotRefused, match=r"no manifest\.json"):
            manifest_in(str(tmp_path))


class TestExit:
    """Errors end with 1 or 64; 2 and 4 are results."""

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ([], 64),
            (["--nonsense"], 64),
            (["nowhere", "--out", "out", "--sample-max", "0"], 64),
            (["nowhere", "--out", "out", "--max-age", "-5"], 64),
            (["good", "--out", "out", "--run-id", "a/b"], 64),
            (["nowhere", "--out", "out", "--options", "nowhere.toml"], 1),
            (["nowhere", "--out", "out"], 1),
        ],
    )
    def test_an_error_is_never_taken_for_work_to_do(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        code: int,
    ) -> None:
        """
        Usage errors and refused snapshots have codes of their own, and say why on stderr.
        """
        (tmp_path / "good").mkdir()
        written(tmp_path / "good", json.dumps(GOOD))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["suture-verify", *arguments])

        with pytest.raises(SystemExit) as raised:
            job.main()

        assert raised.value.code == code
        assert capsys.readouterr().err != ""

    def test_json_carries_the_error_too(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """
        A program that reads stdout learns the stable code.
        """
        monkeypatch.setattr(
            "sys.argv",
            ["suture-verify", str(tmp_path), "--out", str(tmp_path / "out"), "--json"],
        )

        with pytest.raises(SystemExit):
            job.main()

        assert document_in(capsys.readouterr().out)["error"]["code"] == "SNAPSHOT_REFUSED"
