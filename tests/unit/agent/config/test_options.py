"""The config file: strict, whole, and every wrong key named."""

import os
from pathlib import Path

import pytest

from agent.config.loading import diff_options, load, load_written, with_live
from agent.config.option_docs import find, sample
from agent.config.options import AgentConfig
from suture.config.option_reference import options
from suture.errors import Code, RefusedError


def write(path: Path, text: str) -> Path:
    """Write a config file."""
    path.write_text(text)
    return path


class TestLoad:
    def test_volumes_are_all_that_must_be_said(self, tmp_path: Path) -> None:
        """
        A file with volumes only is a whole config: everything else has a default.
        """
        config = load(write(tmp_path / "c.toml", '[storage]\nvolumes = ["/a", "/b"]\n'))

        assert (Path("/a"), Path("/b")) == config.storage.volumes

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ('[storage]\nvolumes = ["/a"]\nvolume = 1\n', "storage.volume"),
            ('[storage]\nvolumes = ["/a"]\n[scanner]\n', "scanner"),
            ('[storage]\nvolumes = ["/a"]\n[scan]\ndata_interval_s = 1\n', "scan.data_interval_s"),
            ('[storage]\nvolumes = ["/a"]\n[node]\nlisten = "nowhere"\n', "node.listen"),
            ("[storage]\nvolumes = []\n", "storage.volumes"),
            ("", "storage"),
            ('[storage]\nvolumes = ["/a"]\ntree_algorithm = "md5"\n', "storage.tree_algorithm"),
            ('[storage]\nvolumes = ["/a", "/b\\u0000"]\n', "storage.volumes: .* holds a NUL"),
            ("not toml", "c.toml"),
        ],
    )
    def test_invalid_option_is_refused_by_its_full_name(
        self, tmp_path: Path, text: str, named: str
    ) -> None:
        """The option is unknown, out of bounds or has a wrong format."""
        with pytest.raises(RefusedError, match=named) as caught:
            load(write(tmp_path / "c.toml", text))

        assert Code.INVALID_CONFIG == caught.value.code

    def test_faults_of_a_config_file_are_all_named_at_once(self, tmp_path: Path) -> None:
        """A file with two faults needs one round of corrections."""
        text = '[storage]\nvolumes = ["/a"]\nwrong = 1\n[tasks]\nthreads = 65\n'

        with pytest.raises(RefusedError) as caught:
            load(write(tmp_path / "c.toml", text))

        assert "storage.wrong" in str(caught.value)
        assert "tasks.threads" in str(caught.value)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        """
        A path that does not exist is named.
        """
        with pytest.raises(RefusedError, match=r"nothing\.toml"):
            load(tmp_path / "nothing.toml")


VOLUMES = '[storage]\nvolumes = ["/a"]\n'


class TestPlaces:
    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("[scan]\n# why\n\nflor_bytes_per_s = 1\n", r"c\.toml:6 scan\.flor_bytes_per_s"),
            (
                '[scan]\ndata_interval_s = "7MiB"\n',
                r"c\.toml:4 scan\.data_interval_s: .*invalid time",
            ),
            ('[scan]\nfloor_bytes_per_s = "1MiB"\n', r"c\.toml:4 .*invalid rate"),
            ("[scan]\nwatch = 1\n", r"c\.toml:4 scan\.watch"),
            ("[tasks]\nthreads = true\n", r"c\.toml:4 tasks\.threads"),
            ("[scan]\nstart_jitter_s = true\n", r"c\.toml:4 .*a number of seconds"),
            ("[scan]\nwindows = [\n  # night\n  'soon',\n]\n", r"c\.toml:4 scan\.windows\.0"),
            ("[tasks]\nthreads = 9\nthreads = 8\n", "line 5"),
            ('[node]\nlisten = "127.0.0.1:65536"\n', r"c\.toml:4 node\.listen: .* at most 65535"),
            ('[node]\nadvertise = "dn1:98590"\n', r"c\.toml:4 node\.advertise: .* at most 65535"),
            (
                '[node]\nscm = ["a:9860", "[::1]:98600"]\n',
                r"c\.toml:4 node\.scm\.1: .* at most 65535",
            ),
            ('[node]\nscm = "ozone://a:98610"\n', r"c\.toml:4 node\.scm\.0: .* at most 65535"),
            ('[observe]\nlisten = "a:98610"\n', r"c\.toml:4 observe\.listen: .* at most 65535"),
            ('[ozone]\nlisten = "a:98590"\n', r"c\.toml:4 ozone\.listen: .* at most 65535"),
            ('[observe]\nlisten = "nowhere"\n', r"c\.toml:4 observe\.listen: "),
            ('[observe]\naudit_file = "/a\\u0000"\n', r"c\.toml:4 observe\.audit_file: .* NUL"),
            ('[report]\nexport = "reports"\n', r"c\.toml:4 report\.export: expected an absolute"),
            ('[report]\nexport = "s3a://u:p@b/x"\n', r"report\.export: expected .* credentials.*$"),
            ('[report]\nexport = "http://h/x"\n', r"c\.toml:4 report\.export: expected"),
            ('[report]\nexport = "file://h/x"\n', r"c\.toml:4 report\.export: expected"),
        ],
    )
    def test_a_fault_is_named_with_its_line(self, tmp_path: Path, text: str, named: str) -> None:
        """
        Unknown key, wrong unit, wrong kind: file, line, option, and what it should look like.
        """
        with pytest.raises(RefusedError, match=named):
            load(write(tmp_path / "c.toml", VOLUMES + text))

    def test_an_unknown_option_is_told_what_looks_like_it(self, tmp_path: Path) -> None:
        """
        A slip of the pen is answered with the option that was meant.
        """
        with pytest.raises(RefusedError, match=r"no such option; floor_bytes_per_s\?"):
            load(write(tmp_path / "c.toml", VOLUMES + "[scan]\nflor_bytes_per_s = 1\n"))

    def test_a_later_file_wins_and_is_named(self, tmp_path: Path) -> None:
        """
        Drop-ins are read in the order of their names; the last one that sets an option counts.
        """
        (tmp_path / "conf.d").mkdir()
        main = write(
            tmp_path / "c.toml", VOLUMES + "[tasks]\nthreads = 3\ndelete_proof_age_s = 7\n"
        )
        write(tmp_path / "conf.d" / "10.toml", "[tasks]\nthreads = 4\n")
        last = write(tmp_path / "conf.d" / "20.toml", "# ours\n[tasks]\nthreads = 5\n")

        config, written = load_written(main)

        assert (5, 7) == (config.tasks.threads, config.tasks.delete_proof_age_s)
        assert f"{last}:3" == str(written.places["tasks", "threads"])
        assert f"{main}:5" == str(written.places["tasks", "delete_proof_age_s"])


def test_lock_file_of_an_editor_is_no_drop_in(tmp_path: Path) -> None:
    """
    Emacs leaves a dangling link named .#10.toml while a file is edited; vim leaves .10.toml.swp.
    """
    (tmp_path / "conf.d").mkdir()
    main = write(tmp_path / "c.toml", VOLUMES)
    write(tmp_path / "conf.d" / "10.toml", "[tasks]\nthreads = 4\n")
    (tmp_path / "conf.d" / ".#10.toml").symlink_to("user@host.1234:1")

    assert 4 == load(main).tasks.threads


@pytest.mark.parametrize("name", ["c.toml", "conf.d/10.toml"])
def test_pipe_in_place_of_a_config_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """A pipe without a writer blocks its reader, so the agent would hang at start and at reload."""
    (tmp_path / "conf.d").mkdir()
    if name != "c.toml":
        write(tmp_path / "c.toml", VOLUMES)
    os.mkfifo(tmp_path / name)

    with pytest.raises(RefusedError, match=f"{tmp_path / name}: not a regular file"):
        load(tmp_path / "c.toml")


def test_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    """
    Editors of Windows write one; TOML parsers take it for a statement.
    """
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf[tasks]\nthreads = 4\n" + VOLUMES.encode())

    assert 4 == load(path).tasks.threads


def test_the_last_port_and_none_are_taken(tmp_path: Path) -> None:
    """
    Port 0 takes a free one; an empty address is none.
    """
    text = '[node]\nlisten = "127.0.0.1:0"\nadvertise = "a:65535"\n[observe]\nlisten = ""\n'

    config = load(write(tmp_path / "c.toml", VOLUMES + text))

    assert ("127.0.0.1:0", "a:65535") == (config.node.listen, config.node.advertise)
    assert ("", "") == (config.observe.listen, config.ozone.listen)


class TestContradictions:
    @pytest.mark.parametrize(
        ("text", "named"),
        [
            (
                '[scan]\nfloor_bytes_per_s = "1GiB/s"\nceiling_bytes_per_s = "1MiB/s"\n',
                r"c\.toml:4 .*c\.toml:5 .*above the ceiling",
            ),
            ('[scan]\ndata_interval_s = "10min"\n', r"gap_min_s \(default\), .*c\.toml:4"),
            ('[node]\nlisten = "0.0.0.0:9859"\n', "node.advertise"),
            ('[node]\nlisten = "10.0.0.1:9859"\n', "without TLS"),
            ('[node]\nscm = "scm.example.org:9860"\n', "without TLS"),
            ('[tls]\nkey = "/k"\n', "set all three"),
            (
                '[tls]\nkey = "/k"\nca = "/a"\ncertificate = "/c"\nallow_plaintext = true\n',
                "remove one",
            ),
        ],
    )
    def test_options_that_contradict_each_other_are_refused(
        self, tmp_path: Path, text: str, named: str
    ) -> None:
        """
        Each value is allowed, both together are not: both places are named.
        """
        with pytest.raises(RefusedError, match=named):
            load(write(tmp_path / "c.toml", VOLUMES + text))

    @pytest.mark.parametrize("volumes", ['["/a", "/a"]', '["/a", "/a/b"]', '["/b/c/d", "/b"]'])
    def test_volumes_do_not_share_a_directory(self, tmp_path: Path, volumes: str) -> None:
        """Each directory stands for one disk."""
        with pytest.raises(RefusedError, match="share a directory"):
            load(write(tmp_path / "c.toml", f"[storage]\nvolumes = {volumes}\n"))


class TestUnits:
    def test_people_s_units_are_the_same_numbers(self, tmp_path: Path) -> None:
        """
        A text with its unit means what the bare number in the key's unit means.
        """
        texts = (
            '[scan]\ndata_interval_s = "1d12h"\nceiling_bytes_per_s = "20MiB/s"\n',
            "[scan]\ndata_interval_s = 129600\nceiling_bytes_per_s = 20971520\n",
        )

        first, second = (load(write(tmp_path / "c.toml", VOLUMES + text)) for text in texts)

        assert first == second


class TestReload:
    def test_only_live_options_change(self, tmp_path: Path) -> None:
        """A reload applies the options declared live and leaves the others unchanged."""
        before = load(write(tmp_path / "c.toml", VOLUMES))
        text = VOLUMES + '[scan]\nfloor_bytes_per_s = "2MiB/s"\n[tasks]\nthreads = 3\n'
        after = load(write(tmp_path / "c.toml", text))

        effective = with_live(before, after)

        assert {"scan.floor_bytes_per_s": True, "tasks.threads": False} == diff_options(
            before, after
        )
        assert {"tasks.threads": False} == diff_options(effective, after)


class TestReference:
    def test_the_sample_with_every_option_uncommented_is_valid(self, tmp_path: Path) -> None:
        """The sample can be used as it is, and has the defaults."""
        lines = [line for line in sample().splitlines() if not line.startswith(("# ", "#$"))]
        text = "\n".join(line.removeprefix("#") for line in lines)

        config = load(write(tmp_path / "c.toml", text))

        least = load(write(tmp_path / "d.toml", VOLUMES))
        examples = {"node.advertise", "storage.volumes", "observe.audit_file", "observe.names"}
        examples |= {"report.export"}
        examples |= {"tls.certificate", "tls.key", "tls.ca"}
        assert examples == set(diff_options(config, least))

    def test_every_option_is_explained(self) -> None:
        """
        Each has a meaning that ends in a full stop, and can be found by its name.
        """
        for option in options(AgentConfig):
            assert option.meaning.endswith("."), option.name
            assert option in list(find(option.name))

    def test_an_unknown_option_cannot_be_explained(self) -> None:
        """
        A question for something else is refused.
        """
        with pytest.raises(RefusedError, match="cannot explain option nothing"):
            list(find("nothing"))
