"""The Spark session: a quiet local one without configuration, or the one we were given.

Only what Spark Connect also offers is used here and everywhere: no RDD, no SparkContext.
"""

import atexit
import os
import pwd
import re
import shutil
import signal
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_verify.errors import SparkRefused, failures
from spark_verify.runs import PACKAGES, SOURCES, code_checksum

ERROR_LOGGED: Final = "spark: ERROR "  # as log4j2.properties has it
SAID_AT_EACH_START: Final = ("WARNING", "Picked up", "Setting ", "To adjust ")

HINTS: Final = {
    "JAVA_HOME|java: (not found|No such file|command not found)": (
        "Spark needs Java 17 or later: apt-get install openjdk-17-jre-headless"
    ),
    "Cannot assign requested address": (
        "Python reaches Spark's Java at 127.0.0.1 only, also on hosts with IPv6: "
        "ip address add 127.0.0.1/8 dev lo"
    ),
}
"""What to do about a start that fails, by what Java or the shell says of it."""

ROWS_PER_PARTITION: Final = 500_000
"""Rows that a partition of a shuffle holds: small enough to aggregate in memory."""

REASON_CHARACTERS_MAX: Final = 1500
"""Characters of a library's message that are shown."""

ON_WORKERS: Final = {
    # In KiB. Else Arrow's allocator reserves a GiB of address space when it is loaded, which is all
    # that a task has where `spark.executor.pyspark.memory` says so.
    "spark.executorEnv.MIMALLOC_ARENA_RESERVE": "65536",
}
"""Settings of a session whose tasks run elsewhere."""

SMALL_ROWS: Final = 200_000
"""Below it the job is over before the JVM's second compiler pays for itself."""

QUICK_START: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    # Room from the start: else each step of growth is a collection of everything. The code cache of
    # the first compiler alone is small, and code that is swept out of it is compiled again.
    "-XX:MetaspaceSize=256m -Xms1g -Xmn256m -XX:ReservedCodeCacheSize=256m "
    # Spark's own ten thousand classes, as installed, are not verified again at each start.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For a JVM that lives some seconds: most of its time goes into loading and compiling classes."""

THROUGHPUT: Final = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"
"""For a JVM that works through millions of rows: nobody waits for a pause of it, so it need not pay
for short ones with each reference it writes. What Spark generates for a synthetic cluster is longer
than what a JVM compiles unasked."""

LARGE_ROWS: Final = 10_000_000
"""Below it, too, the second compiler takes more time than its code saves."""

CONNECT: Final = "sc://"
"""How the address of a Spark Connect server begins."""

PORTS: Final = {"sc": 15002, "spark": 7077}
"""Where a server of Spark Connect, and the master of a cluster, listen unless told otherwise."""

REACH_S: Final = 10.0
"""For one of them to take a connection: Spark by itself goes on for minutes, and says little."""

PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""Through which Spark Connect reaches hosts that a connection of our own does not."""

DRIVER_MIB_MIN: Final = 1024
DRIVER_MIB_MAX: Final = 8192

ROOT: Final = Path("/")
"""Below it the kernel says how much memory this process may use."""

FIXED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    # A name of the snapshot may look like a variable.
    "spark.sql.variable.substitute": "false",
    # Checks of Spark against itself, at each rule and with each line of a program.
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""Settings of every session."""

LOG_PROPERTIES: Final = Path(__file__).with_name("log4j2.properties")


def open_session(*, row_count: int, master: str = "") -> SparkSession:
    """Return a session fit for `row_count` rows.

    Under spark-submit or with a Spark Connect address the given session is used as it is;
    `master` overrides; with neither, all cores of this machine. Workers elsewhere are given the
    modules that tasks need; they bring numpy and pyarrow.
    """
    check_reached(master or os.environ.get("SPARK_REMOTE", ""))
    builder = SparkSession.Builder().appName("suture-verify")
    is_given = is_submitted() or SparkSession.getActiveSession() is not None
    if is_given and not master:
        spark = builder.getOrCreate()
    elif master.startswith(CONNECT):
        spark = _start(builder.remote(master), master)
    else:
        for name, value in _options(row_count, master).items():
            builder = builder.config(name, value)
        spark = _start(builder.master(master or "local[*]"), master or "local[*]")
    _send_modules(spark)
    _tune(spark, row_count)
    return spark


def check_reached(master: str) -> None:
    """Raise SparkRefused where nobody takes a connection at the address of a master, of which one
    is enough where several are named."""
    scheme, _, rest = master.partition("://")
    is_relayed = scheme == "sc" and any(map(os.environ.get, PROXIES))
    if scheme not in PORTS or is_relayed:
        return
    named = rest.partition("/")[0]  # behind it may be a secret
    faults = [_fault_at(place, PORTS[scheme]) for place in named.split(",")]
    if all(faults):
        raise SparkRefused(
            f"no Spark at {scheme}://{named}: {'; '.join(faults)}",
            hint="is it running there? --master names the master of a cluster, spark://HOST:7077, "
            "or a server of Spark Connect, sc://HOST:15002",
        )


def _fault_at(place: str, port: int) -> str:
    """Return why HOST, or HOST:PORT, takes no connection; "" where it does."""
    try:
        at = urlsplit(f"//{place}")
        address = (at.hostname or "", at.port or port)
        if not address[0]:
            return "no host is named"
        socket.create_connection(address, REACH_S).close()
    except TimeoutError:
        return f"no answer within {REACH_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # of what is no address
        return str(error)
    return ""


_sent: set[str] = set()
"""Applications whose workers were given the modules."""


def _send_modules(spark: SparkSession) -> None:
    """Give the workers what they import. Local ones may need it, too: spark-submit gives workers no
    wheel, whatever --py-files names, but only archives named .zip, .egg or .jar."""
    name = str(spark.conf.get("spark.app.id", "")) or str(id(spark))
    if name not in _sent:
        # Workers fetch it at any time, for instance one that replaces a dead one.
        spark.addArtifacts(str(packed_modules(_scratch())), pyfile=True)
        _sent.add(name)


def is_submitted() -> bool:
    """Return whether spark-submit started this process, or a Spark Connect server is named."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def is_connected(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def packed_modules(directory: Path) -> Path:
    """Write what tasks import into an archive in `directory`; return its path. Its name follows
    from what is in it: Spark takes no other content under a name it knows."""
    path = directory / f"suture_verify_{code_checksum()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            files = resources.files(package).iterdir()  # also in a wheel that is not unpacked
            for file in sorted(files, key=lambda file: file.name):
                if file.name.endswith(SOURCES):
                    # Without the time of day: the same modules are the same archive.
                    entry = zipfile.ZipInfo(f"{package.replace('.', '/')}/{file.name}")
                    archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _start(builder: Any, master: str) -> SparkSession:
    """Start a JVM, and Spark in it. Raises SparkRefused with the reason that it gave: the stack
    around it says nothing to who runs this."""
    if master.startswith("local"):
        _name_this_host()
    before = _children()
    with tempfile.TemporaryFile() as words:
        try:
            with _heard(words):
                _name_this_user(builder)
                session: SparkSession = builder.getOrCreate()
        except KeyboardInterrupt:
            # PySpark takes away where its JVM is to say that it is there: it never ends by itself.
            for pid in _children() - before:
                os.kill(pid, signal.SIGTERM)
            raise
        except failures() as error:
            words.seek(0)
            said = words.read().decode("utf-8", errors="replace")
            reason = reason_of(error, said)
            hint = next((hint for words, hint in HINTS.items() if re.search(words, reason)), "")
            raise SparkRefused(f"Spark does not start: {reason}", hint=hint) from error
    return session


def _children() -> set[int]:
    """Return the processes that this one started, where the kernel says which."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def _name_this_host() -> None:
    """Let a local session listen on loopback, also where this machine's own name is no address, or
    not always: Spark asks for that before it looks at its configuration."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")


def _name_this_user(builder: Any) -> None:
    """Give Hadoop a name for a user id that the system has no entry for, as containers run: Hadoop
    would ask the system for it when Spark starts, and end."""
    if _has_entry() or "spark.master" not in builder._options:
        return
    name = f"uid{os.getuid()}"
    os.environ.setdefault("SPARK_USER", name)
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(builder._options.items())))
    jvm: Any = SparkContext._jvm
    users = jvm.org.apache.hadoop.security.UserGroupInformation
    users.setLoginUser(users.createRemoteUser(name))


def _has_entry() -> bool:
    """Return whether the system has an entry for this process's user id."""
    try:
        return bool(pwd.getpwuid(os.getuid()))
    except KeyError:
        return False


@contextmanager
def _heard(words: IO[bytes]) -> Iterator[None]:
    """Take what processes that are started meanwhile say on stderr, as long as they live: what
    goes wrong later is told by the errors that reach Python."""
    sys.stderr.flush()
    own = os.dup(2)
    os.dup2(words.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def reason_of(error: Exception, said: str) -> str:
    """Return the innermost reason that Java gave, in one line; what Python knows if it gave
    none."""
    lines = [line.strip() for line in (said + "\n" + str(error)).splitlines()]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    thrown = [line.partition('" ')[2] for line in lines if line.startswith("Exception in thread")]
    logged = [line.partition(ERROR_LOGGED)[2].partition(": ")[2] for line in lines]
    errors = [error for error in logged if error]
    told = [line for line in lines if line and not line.startswith(SAID_AT_EACH_START)]
    reasons = causes[-1:] or thrown[-1:] or errors[:1] or told[:1]
    return reasons[0].strip()[:REASON_CHARACTERS_MAX]


def _options(row_count: int, master: str) -> dict[str, str]:
    """Return the options of a session that is started here; `master` is empty for this machine."""
    java = QUICK_START if row_count < SMALL_ROWS else THROUGHPUT
    if SMALL_ROWS <= row_count < LARGE_ROWS:
        java += " -XX:TieredStopAtLevel=1"
    is_local = not master or master.startswith("local")
    if is_local and not _knows_its_name():
        java = f"{java} -Djdk.net.hosts.file={_own_hosts()}"
    if not _has_entry():  # Java has no home directory then
        java = f"{java} -Duser.home={_scratch()}"
    if LOG_PROPERTIES.is_file():  # inside a zip on a cluster it is not, and not needed
        java = f"{java} -Dlog4j2.configurationFile=file:{LOG_PROPERTIES}"
    options = {
        "spark.driver.memory": f"{_driver_mib()}m",
        "spark.driver.extraJavaOptions": java.strip(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Else each expression is sent with the line of Python that made it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if not is_local:  # workers have a Python of their own, and reach this process by its name
        return options | ON_WORKERS
    # The judge runs where its libraries are; a local session takes this from nowhere else.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return options | {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}


def _knows_its_name() -> bool:
    """Whether this machine's own name is an address."""
    try:
        return bool(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return False


def _own_hosts() -> Path:
    """Write a file of hosts in which this machine's name is an address: where credentials of a
    store are in its environment, Spark asks for that, whatever it was told of its host."""
    path = _scratch() / "hosts"
    path.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n", encoding="utf-8")
    return path


def _scratch() -> Path:
    """Return a new directory that is there as long as this process."""
    directory = Path(tempfile.mkdtemp(prefix="suture-verify-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _driver_mib() -> int:
    """Return a third of the memory that may be used here, within bounds: the rest is for the
    Python of the tasks, and for what Java needs beside its heap."""
    third = memory_here_bytes() // 3 // 1024**2
    return min(max(third, DRIVER_MIB_MIN), DRIVER_MIB_MAX)


def memory_here_bytes(root: Path = ROOT) -> int:
    """Return how much memory this process and its children may use together."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in _control_groups(root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # no such file, or the word for no limit
                found.append(int((group / name).read_text()))
    return min(found)


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the directories in which the limits of this process may stand: those of its control
    groups, of the groups above, and what a container sees in their place.

    Each controller of version 1 has a tree of its own; its line here has a name, that of version 2
    has none.
    """
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for tree in {controllers, *controllers.split(",")} if controllers else ("", "unified"):
                own = root / "sys/fs/cgroup" / tree / path.lstrip("/")
                yield from (own, *own.parents)


def _tune(spark: SparkSession, row_count: int) -> None:
    """Set what may be set on a running session, also a remote one. Most of it is a default of
    Spark's, which a cluster may have changed: no setting may change a result."""
    is_small = row_count < SMALL_ROWS
    partitions = 1 if is_small else max(2 * _cores(), -(-row_count // ROWS_PER_PARTITION))
    settings = FIXED | {
        "spark.sql.shuffle.partitions": str(partitions),
        # Adaptive planning plans again after each stage, which small stages do not repay.
        "spark.sql.adaptive.enabled": str(not is_small).lower(),
        "spark.sql.codegen.wholeStage": str(not is_small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if is_small else "FALLBACK",
    }
    for name, value in settings.items():
        with suppress(*failures()):  # a setting that this release does not know, or has fixed
            spark.conf.set(name, value)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def described(spark: SparkSession, text: str) -> None:
    """Describe the jobs that follow, in Spark's own pages and event log."""
    if is_connected(spark):
        return  # its protocol has no description of jobs
    spark.sparkContext.setJobDescription(text)
