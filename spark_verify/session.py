"""Opens the Spark session: a local session with little output by default, or the given one.

The job uses only features of Spark Connect: no RDD, no SparkContext.
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
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_verify.errors import REASON_CHARACTERS_MAX, SparkRefused, failures
from spark_verify.runs import code_checksum, sources
from suture.runtime.memory import limit_bytes

ERROR_LOGGED: Final = "spark: ERROR "  # the format in log4j2.properties
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
"""Hints for a failed start, by a pattern in the message of Java or the shell."""

ROWS_PER_PARTITION: Final = 500_000
"""Rows per shuffle partition: few enough to aggregate in memory."""

ON_WORKERS: Final = {
    # In KiB. By default Arrow's allocator reserves 1 GiB of address space when it is loaded, which
    # can be a task's whole limit (`spark.executor.pyspark.memory`).
    "spark.executorEnv.MIMALLOC_ARENA_RESERVE": "65536",
}
"""Settings of a session whose tasks run on other machines."""

SMALL_ROWS: Final = 200_000
"""Maximum number of rows for the settings of small runs, without the JVM's second compiler."""

QUICK_START: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    # Start with enough memory, because each step of growth is a full collection. With the first
    # compiler alone, the code cache is small, and evicted code is compiled again.
    "-XX:MetaspaceSize=256m -Xms1g -Xmn256m -XX:ReservedCodeCacheSize=256m "
    # Do not verify Spark's ten thousand installed classes again at each start.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""JVM options for a run of seconds, most of which loads and compiles classes."""

THROUGHPUT: Final = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"
"""JVM options for millions of rows. The parallel collector has long pauses, which do not matter in
a batch job, and less overhead. A JVM does not compile methods as long as Spark's generated code by
default.
"""

LARGE_ROWS: Final = 10_000_000
"""Maximum number of rows for which the second compiler takes more time than its code saves."""

CONNECT: Final = "sc://"
"""Prefix of the address of a Spark Connect server."""

PORTS: Final = {"sc": 15002, "spark": 7077}
"""Default ports of a Spark Connect server and of a cluster's master."""

REACH_S: Final = 10.0
"""Timeout to connect to a Spark server; Spark itself retries for minutes, with little output."""

PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables that name proxies, through which Spark Connect reaches further hosts."""

DRIVER_MIB_MIN: Final = 1024
DRIVER_MIB_MAX: Final = 8192
DRIVER_ROW_BYTES: Final = 128

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
    # Names in a snapshot may look like variables.
    "spark.sql.variable.substitute": "false",
    # Spark's self-checks at each rule, and its records of the calling line of each expression.
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""Settings of every session, on which results depend."""

UNSET: Final = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
"""Spark's defaults of the settings that the job chooses by the number of rows, unless the user of
the session has set them."""

_chosen: dict[str, str] = {}
"""The values of these settings that this process has set."""

LOG_PROPERTIES: Final = Path(__file__).with_name("log4j2.properties")


def open_session(*, row_count: int, master: str = "") -> SparkSession:
    """Return a session for `row_count` rows.

    Under spark-submit or with a Spark Connect address, use the given session, unless `master` is
    set. With neither, use all cores of this machine. Workers elsewhere receive the modules that
    tasks need; they must have numpy and pyarrow.
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
    """Raise SparkRefused if none of the addresses in `master` accepts a connection."""
    scheme, _, rest = master.partition("://")
    is_relayed = scheme == "sc" and any(map(os.environ.get, PROXIES))
    if scheme not in PORTS or is_relayed:
        return
    named = rest.partition("/")[0]  # the rest may hold a secret
    faults = [_fault_at(place, PORTS[scheme]) for place in named.split(",")]
    if all(faults):
        raise SparkRefused(
            f"cannot connect to Spark at {scheme}://{named}: {'; '.join(faults)}",
            hint="check --master: expected a Spark master, spark://HOST:7077, or a Spark "
            "Connect server, sc://HOST:15002",
        )


def _fault_at(place: str, port: int) -> str:
    """Return the reason why HOST or HOST:PORT accepts no connection; "" if it accepts one."""
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
    except ValueError as error:  # not a valid address
        return str(error)
    return ""


_sent: set[str] = set()
"""Applications whose workers have received the modules."""


def _send_modules(spark: SparkSession) -> None:
    """Send the workers the modules that tasks import. Local workers may need them too, because
    spark-submit gives workers only archives named .zip, .egg or .jar, and no wheel.
    """
    name = str(spark.conf.get("spark.app.id", "")) or str(id(spark))
    if name not in _sent:
        # Workers may fetch it at any time, for instance to replace a dead worker.
        path = str(packed_modules(_scratch()))
        if spark.version.startswith("3.") and not is_connected(spark):
            spark.sparkContext.addPyFile(path)  # before 4.0, only Connect has artifacts
        else:
            spark.addArtifacts(path, pyfile=True)
        _sent.add(name)


def is_submitted() -> bool:
    """Return True if spark-submit started this process, or a Spark Connect server is named."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def is_connected(spark: SparkSession) -> bool:
    """Return True if a session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def packed_modules(directory: Path) -> Path:
    """Write the modules that tasks import into an archive in `directory`; return its path.

    The name depends on the content, because Spark accepts no other content under a known name.
    """
    path = directory / f"suture_verify_{code_checksum()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sources():
            # No time stamp: the same modules give the same archive.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def _start(builder: Any, master: str) -> SparkSession:
    """Start a JVM with Spark. Raise SparkRefused with Java's reason, without its stack trace."""
    if master.startswith("local"):
        _name_this_host()
    before = _children()
    with tempfile.TemporaryFile() as words:
        try:
            with _capture_stderr(words):
                _name_this_user(builder)
                session: SparkSession = builder.getOrCreate()
        except KeyboardInterrupt:
            # PySpark removes the directory for its JVM's first message, so the JVM never ends.
            for pid in _children() - before:
                os.kill(pid, signal.SIGTERM)
            raise
        except failures() as error:
            words.seek(0)
            said = words.read().decode("utf-8", errors="replace")
            reason = reason_of(error, said)
            hint = next((hint for words, hint in HINTS.items() if re.search(words, reason)), "")
            raise SparkRefused(f"cannot start Spark: {reason}", hint=hint) from error
    return session


def _children() -> set[int]:
    """Return the child processes of this process; none if the kernel does not list them."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def _name_this_host() -> None:
    """Make a local session listen on loopback, even if this machine's name does not always resolve.
    Spark resolves the name before it reads its configuration.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")


def _name_this_user(builder: Any) -> None:
    """Give Hadoop a user name if the system has no entry for the user id, as in containers.
    Otherwise Hadoop asks the system for the name when Spark starts, and fails.
    """
    if _has_entry() or "spark.master" not in builder._options:
        return
    name = f"uid{os.getuid()}"
    os.environ.setdefault("SPARK_USER", name)
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(builder._options.items())))
    jvm: Any = SparkContext._jvm
    users = jvm.org.apache.hadoop.security.UserGroupInformation
    users.setLoginUser(users.createRemoteUser(name))


def _has_entry() -> bool:
    """Return True if the system has an entry for this process's user id."""
    try:
        return bool(pwd.getpwuid(os.getuid()))
    except KeyError:
        return False


@contextmanager
def _capture_stderr(words: IO[bytes]) -> Iterator[None]:
    """Redirect stderr to `words` during the body. Processes that are started in the body keep this
    stderr; their later failures are reported by errors in Python.
    """
    sys.stderr.flush()
    own = os.dup(2)
    os.dup2(words.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def reason_of(error: Exception, said: str) -> str:
    """Return Java's innermost error message in one line, or Python's if Java gave none."""
    lines = [line.strip() for line in (said + "\n" + str(error)).splitlines()]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    thrown = [line.partition('" ')[2] for line in lines if line.startswith("Exception in thread")]
    logged = [line.partition(ERROR_LOGGED)[2].partition(": ")[2] for line in lines]
    errors = [error for error in logged if error]
    told = [line for line in lines if line and not line.startswith(SAID_AT_EACH_START)]
    reasons = causes[-1:] or thrown[-1:] or errors[:1] or told[:1]
    return reasons[0].strip()[:REASON_CHARACTERS_MAX]


def _options(row_count: int, master: str) -> dict[str, str]:
    """Return the options of a session that this process starts; `master` is "" for a local
    session."""
    java = QUICK_START if row_count < SMALL_ROWS else THROUGHPUT
    if SMALL_ROWS <= row_count < LARGE_ROWS:
        java += " -XX:TieredStopAtLevel=1"
    is_local = not master or master.startswith("local")
    if is_local and not _knows_its_name():
        java = f"{java} -Djdk.net.hosts.file={_own_hosts()}"
    if not _has_entry():  # Java then has no home directory
        java = f"{java} -Duser.home={_scratch()}"
    if LOG_PROPERTIES.is_file():  # neither present nor needed in a zip on a cluster
        java = f"{java} -Dlog4j2.configurationFile=file:{LOG_PROPERTIES}"
    options = {
        "spark.driver.memory": f"{_driver_mib(row_count)}m",
        "spark.driver.extraJavaOptions": java.strip(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Otherwise each expression is sent with the Python line that created it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if not is_local:  # workers use their own Python, and the host name of this process
        return options | ON_WORKERS
    # Tasks need the libraries of this interpreter; a local session reads only this variable.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return options | {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}


def _knows_its_name() -> bool:
    """Return True if this machine's host name resolves to an address."""
    try:
        return bool(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return False


def _own_hosts() -> Path:
    """Write a hosts file that resolves this machine's name. Spark resolves the name, whatever its
    host settings, if the environment has credentials of an object store.
    """
    path = _scratch() / "hosts"
    path.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n", encoding="utf-8")
    return path


def _scratch() -> Path:
    """Return a new directory that exists as long as this process."""
    directory = Path(tempfile.mkdtemp(prefix="suture-verify-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _driver_mib(row_count: int) -> int:
    """Return the size of Java's heap: it grows with the rows, up to a third of the memory that this
    process may use. The rest is for the Python processes of the tasks and for Java's memory outside
    its heap. Java fills a larger heap before it frees memory.
    """
    third = limit_bytes() // 3 // 1024**2
    wanted = min(DRIVER_MIB_MIN + row_count * DRIVER_ROW_BYTES // 1024**2, DRIVER_MIB_MAX)
    return max(min(third, wanted), DRIVER_MIB_MIN)


def _tune(spark: SparkSession, row_count: int) -> None:
    """Set options of a running session, also of a remote one. Most are Spark's defaults, which a
    cluster may have changed: results must not depend on settings. Others, which only cost time, are
    chosen if nobody has set them.
    """
    is_small = row_count < SMALL_ROWS
    partitions = 1 if is_small else max(2 * _cores(), -(-row_count // ROWS_PER_PARTITION))
    fitting = {
        "spark.sql.shuffle.partitions": str(partitions),
        # Adaptive planning replans after each stage, which costs small stages more than it saves.
        "spark.sql.adaptive.enabled": str(not is_small).lower(),
        "spark.sql.codegen.wholeStage": str(not is_small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if is_small else "FALLBACK",
    }
    for name, value in (FIXED | fitting).items():
        with suppress(*failures()):  # unknown or read-only in this Spark release
            if name in FIXED or spark.conf.get(name) in (UNSET[name], _chosen.get(name)):
                spark.conf.set(name, value)
                _chosen[name] = value


def _cores() -> int:
    return len(os.sched_getaffinity(0))
