"""The Ansible role: its files are well formed, and write the options of the manual.

`tools/try_ansible.py` runs the role.
"""

import json
import os.path
import tomllib
from base64 import b64decode
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from jinja2 import meta

from agent.config import loading
from scm.state import options
from tools import try_ansible, try_deb

ROOT = Path(__file__).resolve().parents[2]
ROLE = try_ansible.DEPLOY / "roles/suture"
TASKS = sorted([*ROLE.glob("tasks/*.yml"), *ROLE.glob("handlers/*.yml")])
TEMPLATES = sorted(ROLE.glob("templates/*.j2"))
JINJA = jinja2.Environment(  # noqa: S701 - as Ansible, whose templates are no pages
    trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
)
JINJA.filters |= {"to_json": json.dumps, "basename": os.path.basename, "b64decode": b64decode}
SET_BY_ANSIBLE = {"ansible_facts", "group_names", "groups", "inventory_hostname", "item"}
MUST_BE_SET = {"suture_package"}
DATANODE = "datanode1.example.org"


def read(path: Path) -> Any:
    """Parse a file of YAML."""
    return yaml.safe_load(path.read_text())


def variables(**more: object) -> dict[str, object]:
    """Return the variables of the first host of the example inventory, as Ansible sees them."""
    inventory = read(try_ansible.DEPLOY / "inventory.yml")
    known = {"inventory_hostname": DATANODE, "groups": {"suture_scm": [DATANODE]}}
    written = {**read(ROLE / "defaults/main.yml"), **inventory["all"]["vars"], **more}
    return {
        name: JINJA.from_string(value).render(known) if isinstance(value, str) else value
        for name, value in written.items()
    }


def rendered(name: str, **more: object) -> str:
    """Return the file that Ansible writes from a template."""
    text = (ROLE / f"templates/{name}.j2").read_text()
    return JINJA.from_string(text).render(variables(**more))


def test_playbook_and_role_name_the_groups_of_the_inventory() -> None:
    """The hosts of the plays are groups of the example inventory, which has one control plane."""
    inventory = read(try_ansible.DEPLOY / "inventory.yml")
    plays = read(try_ansible.DEPLOY / "site.yml")

    named = {name for play in plays for name in play["hosts"].replace("!", "").split(":")}
    assert inventory.keys() - {"all"} == named
    assert 1 == len(inventory["suture_scm"]["hosts"])
    assert [["suture"]] * 2 == [play["roles"] for play in plays]


@pytest.mark.parametrize("path", [*TASKS, *TEMPLATES], ids=lambda path: path.name)
def test_variables_of_tasks_and_templates_have_defaults(path: Path) -> None:
    """A variable is set in defaults, by a task of the role, by Ansible, or must be set."""
    text = path.read_text()
    tasks = [task for file in TASKS for task in read(file)]
    by_tasks = {task["register"] for task in tasks if "register" in task}
    by_tasks |= {name for task in tasks for name in task.get("vars", {})}
    conditions = [task["when"] for task in read(path) if "when" in task] if path in TASKS else []
    used = meta.find_undeclared_variables(JINJA.parse(text)) | {
        name
        for condition in conditions
        for name in meta.find_undeclared_variables(JINJA.parse(f"{{{{ {condition} }}}}"))
    }

    known = read(ROLE / "defaults/main.yml").keys() | by_tasks | SET_BY_ANSIBLE | MUST_BE_SET
    assert set() == used - known


def test_every_default_is_used() -> None:
    """No variable is documented that changes nothing."""
    text = "".join(path.read_text() for path in [*TASKS, *TEMPLATES])

    assert [] == [name for name in read(ROLE / "defaults/main.yml") if name not in text]


def test_notified_handlers_and_included_files_exist() -> None:
    """Each handler that a task notifies is declared, and each file that a task needs is there."""
    tasks = [task for file in TASKS for task in read(file)]
    handlers = read(ROLE / "handlers/main.yml")

    named = {each[key] for each in handlers for key in ("name", "listen")}
    assert set() == {task["notify"] for task in tasks if "notify" in task} - named
    included = {task.get("ansible.builtin.import_tasks", "main.yml") for task in tasks}
    assert {path.name for path in ROLE.glob("tasks/*.yml")} == included


def test_files_of_the_role_are_those_of_the_manual() -> None:
    """With the example inventory, the role writes what the manual shows, byte for byte."""
    shown = {
        Path(path).name: content
        for heading in ("## On the first host", "## On each host")
        for path, _, content, _ in try_deb.STEP.findall(try_deb.part(heading))
        if path
    }

    assert {"scm.env", "scm.toml", "host.toml"} == shown.keys()
    assert shown == {name: rendered(name) for name in shown}


def test_agent_accepts_the_options(tmp_path: Path) -> None:
    """The options of the role are valid beside the shipped ones, and override their volumes."""
    volumes = ["/srv/disk1/suture", "/srv/disk2/suture"]
    (tmp_path / "agent.toml").write_text((ROOT / "systemd/agent.toml").read_text())
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/host.toml").write_text(rendered("host.toml", suture_volumes=volumes))

    config = loading.load(tmp_path / "agent.toml")

    assert volumes == [str(volume) for volume in config.storage.volumes]
    assert f"{DATANODE}:9859" == config.node.listen
    assert f"ReadWritePaths={' '.join(volumes)}" in rendered("volumes.conf", suture_volumes=volumes)


def test_control_plane_accepts_the_options(tmp_path: Path) -> None:
    """The options of the role are valid, and `scm.env` names their file."""
    path = tmp_path / "scm.toml"
    path.write_text(rendered("scm.toml"))

    loaded = options.load(path, {})

    assert tomllib.loads(path.read_text())["audit_file"] == str(loaded.audit_file)
    assert "OPTIONS=--config /etc/suture/scm.toml\n" in rendered("scm.env")
