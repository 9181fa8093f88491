"""HDFS by its REST interface, WebHDFS or HttpFS: nothing of Hadoop's is needed on this machine.

fsspec speaks it. What is added here: a call that hangs ends, what the name node or the network says
against it is an OSError, a rename that HDFS declined is one as well, and nothing is called absent
because somebody did not answer.

Who asks is told by the environment: FSSPEC_WEBHDFS_TOKEN holds a delegation token,
FSSPEC_WEBHDFS_KERBEROS=true asks by the ticket of kinit, FSSPEC_WEBHDFS_USER (or HADOOP_USER_NAME,
or the name of this process's user) is believed where HDFS believes names.
"""

import getpass
import os
from functools import partial
from typing import Any, Final

import fsspec.config
import pyarrow.fs as pafs
from fsspec.implementations.webhdfs import WebHDFS

PORTS: Final = {False: 9870, True: 9871}
"""Of a name node, without and with TLS."""

DEADLINES_S: Final = (10.0, 120.0)
"""To be connected, and between two bytes of an answer: a name node that pauses for its memory, or a
datanode whose disk is slow, takes its time."""


def webhdfs(host: str, port: int | None, *, has_tls: bool) -> Any:
    """Return Arrow's view of the HDFS behind a name node or a gateway; nothing is asked yet."""
    given = fsspec.config.conf.get("webhdfs", {})
    who = {} if given.keys() & {"token", "kerberos", "user"} else {"user": _user()}
    files: Any = _Files(
        host, port or PORTS[has_tls], use_https=has_tls, skip_instance_cache=True, **who
    )
    # The library itself would wait for ever.
    files.session.request = partial(files.session.request, timeout=DEADLINES_S)
    return pafs.PyFileSystem(_Handler(files))


def _user() -> str:
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


class _Files(WebHDFS):
    """HDFS, whose refusals are errors of a file system."""

    def _call(self, op: str, *args: Any, **kwargs: Any) -> Any:
        library: Any = super()
        try:
            answer = library._call(op, *args, **kwargs)
        except (RuntimeError, ValueError) as error:  # what the library makes of other refusals
            raise OSError(f"the name node refuses {op.lower()}: {_first_line(error)}") from error
        if op in ("RENAME", "MKDIRS") and answer.json() != {"boolean": True}:
            raise OSError(f"the name node declines {op.lower()}: {args} {kwargs}")
        return answer

    @staticmethod
    def _process_info(info: dict[str, Any]) -> dict[str, Any]:
        info["mtime"] = info["modificationTime"] / 1000  # by the name that Arrow asks for
        described: dict[str, Any] = WebHDFS._process_info(info)
        return described

    # Where the name node does not answer, the library says that the file is not there.

    def exists(self, path: str, **_: Any) -> bool:
        return self._kind(path) is not None

    def isdir(self, path: str) -> bool:
        return self._kind(path) == "directory"

    def isfile(self, path: str) -> bool:
        return self._kind(path) == "file"

    def _kind(self, path: str) -> str | None:
        try:
            kind: str = self.info(path)["type"]
        except FileNotFoundError:
            return None
        return kind


class _Handler(pafs.FSSpecHandler):
    """How Arrow asks. What lies in a directory is found without the library's walk, to which a
    directory that cannot be listed is empty."""

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        found: list[Any] = []
        awaited = [selector.base_dir]
        while awaited:
            path = awaited.pop()
            try:
                listed = self.fs.ls(path, detail=True)
            except FileNotFoundError:
                if path == selector.base_dir and not selector.allow_not_found:
                    raise
                continue  # it went meanwhile
            found += [self._create_file_info(one["name"], one) for one in listed]
            if selector.recursive:
                awaited += [one["name"] for one in listed if one["type"] == "directory"]
        return found


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
