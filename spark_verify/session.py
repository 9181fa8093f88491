"""Opens the Spark session: by default a local session with little output, otherwise a given
session.

The job uses only features that Spark Connect supports, and therefore no RDD and no SparkContext.
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
from typing import IO, Any, Final, cast
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_verify.errors import FAILURES, REASON_CHARACTERS_MAX, SparkRefused
from spark_verify.runs import code_checksum, sources
from suture.runtime.memory import limit_bytes

ERROR_LOGGED: Final = "spark: ERROR "  # prefix of an error in the format of log4j2.properties
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
"""Hints for the user if Spark does not start. Each key is a pattern for the error text of Java or
the shell."""

ROWS_PER_PARTITION: Final = 500_000
"""Number of rows per shuffle partition, which is small enough to aggregate a partition in
memory."""

ON_WORKERS: Final = {
    # KiB that Arrow's allocator reserves. Its default, 1 GiB of address space, may be the whole
    # limit of a task (`spark.executor.pyspark.memory`).
    "spark.executorEnv.MIMALLOC_ARENA_RESERVE": "65536",
}
"""Settings of a session whose tasks run on other machines."""

DAEMON: Final = "spark.python.daemon.module"
OWN_DAEMON: Final = "spark_verify.tasks.worker_daemon"
"""The module that starts Python workers of a local session. They have the path of this process."""

SMALL_ROWS: Final = 200_000
"""Maximum number of rows of a small run. The JVM of a small run does not use the second (C2)
compiler."""

START: Final = (
    # Start with enough memory, because each step of growth is a full collection. With the first
    # compiler alone, the code cache is small, and evicted code is compiled again.
    " -XX:MetaspaceSize=256m -Xms1g -XX:ReservedCodeCacheSize=256m "
    # Do not verify the ten thousand classes of Spark's installation at each start.
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    # With its default size, the table of the names in these classes has long chains.
    "-XX:+UnlockExperimentalVMOptions -XX:SymbolTableSize=1048576 "
    "-XX:+IgnoreUnrecognizedVMOptions"
)
"""JVM options with which Spark starts faster."""

QUICK_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmn256m" + START
"""JVM options for a run of a few seconds, which mostly loads and compiles classes."""

THROUGHPUT: Final = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods" + START
"""JVM options for a run with millions of rows.

The parallel garbage collector has less overhead, and its long pauses do not matter in a batch job.
The second option lets the JVM compile very long methods, such as the methods that Spark generates.
"""

LARGE_ROWS: Final = 10_000_000
"""Maximum number of rows for which the second (C2) compiler takes more time than its code saves."""

CONNECT: Final = "sc://"
"""Prefix of the addresses of Spark Connect servers."""

REACH_S: Final = 10.0
"""Timeout in seconds to connect to a Spark Connect server."""

PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables with the addresses of proxies, through which Spark Connect may reach its
server."""

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
    # A text from a snapshot may look like a variable reference.
    "spark.sql.variable.substitute": "false",
    # Disable Spark's self-checks of each rule, and the record of the calling line of each
    # expression.
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""Settings of every session. The results depend on these settings."""

LOG_PROPERTIES: Final = Path(__file__).with_name("log4j2.properties")


def open_session(*, row_count: int, master: str = "") -> SparkSession:
    """Return a Spark session for a run with `row_count` rows.

    If `master` is set, connect to this master. Otherwise, use the session of spark-submit, or the
    Spark Connect server in SPARK_REMOTE. If there is none of these, use all cores of this machine.
    Workers on other machines receive the modules that the tasks need, but must have numpy and
    pyarrow installed.
    """
    remote = master or os.environ.get("SPARK_REMOTE", "")
    if remote.startswith(CONNECT):
        check_reached(remote)
    builder: Any = SparkSession.Builder().appName("suture-verify")
    given = SparkSession.getActiveSession()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ or remote
    is_own = bool(master) or (_is_own.get(_id_of(given)) if given else not is_submitted)
    if master.startswith(CONNECT):
        builder, is_own = builder.remote(master), False
    elif is_own:
        builder = builder.master(master or "local[*]")
        for name, value in _options(row_count, master).items():
            builder = builder.config(name, value)
    spark = _start(builder)
    if _id_of(spark) not in _is_own and spark.conf.get(DAEMON, "") != OWN_DAEMON:
        _send_modules(spark)
    _is_own[_id_of(spark)] = bool(is_own)
    for name, value in (FIXED | _fitting(row_count) if is_own else FIXED).items():
        with suppress(*FAILURES):  # the option is unknown or read-only in this Spark release
            spark.conf.set(name, value)
    return spark


def check_reached(remote: str) -> None:
    """Raise SparkRefused if a Spark Connect server does not accept connections.

    Without this check, Spark's client would retry for minutes without output.
    """
    if any(map(os.environ.get, PROXIES)):
        return
    named = remote.removeprefix(CONNECT).partition("/")[0]  # the rest may hold a secret
    try:
        at = urlsplit(f"//{named}")
        socket.create_connection((at.hostname or "", at.port or 15002), REACH_S).close()
    except (OSError, ValueError) as error:
        raise SparkRefused(
            f"cannot connect to Spark at {CONNECT}{named}: {error}",
            hint="check --master: expected a Spark Connect server, sc://HOST:15002",
        ) from error


_is_own: dict[str, bool] = {}
"""For each application id, True if this process has started the session of the application."""


def _id_of(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.app.id", "")) or str(id(spark))


def _send_modules(spark: SparkSession) -> None:
    """Send the modules that tasks import to the workers.

    Local workers may need them, too, because spark-submit gives only archives with the suffix .zip,
    .egg or .jar to workers, and no wheels.
    """
    # The file must stay, because workers may fetch it at any time, for instance after a restart.
    path = str(packed_modules(_scratch()))
    if spark.version.startswith("3.") and not is_connected(spark):
        spark.sparkContext.addPyFile(path)  # before 4.0, only Connect has artifacts
    else:
        spark.addArtifacts(path, pyfile=True)


def is_connected(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def packed_modules(directory: Path) -> Path:
    """Write the modules that tasks import to an archive in `directory`. Return the path of the
    archive.

    The name of the archive contains a checksum of the content, because Spark rejects a file with a
    known name and other content.
    """
    path = directory / f"suture_verify_{code_checksum()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sources():
            # Without a time stamp, the same modules give the same archive.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def _start(builder: Any) -> SparkSession:
    """Start a JVM with Spark, and return the session.

    Raise SparkRefused with the error message of Java, without its stack trace.
    """
    is_local = builder._options.get("spark.master", "").startswith("local")
    if is_local:
        _name_this_host()
    before = _children()
    with tempfile.TemporaryFile() as words:
        try:
            with _capture_stderr(words):
                _name_this_user(builder)
                session: SparkSession = builder.getOrCreate()
        except KeyboardInterrupt:
            # PySpark has removed the directory for the JVM's first message. Without the directory,
            # the JVM would never end by itself.
            for pid in _children() - before:
                os.kill(pid, signal.SIGTERM)
            raise
        except FAILURES as error:
            words.seek(0)
            said = words.read().decode("utf-8", errors="replace")
            reason = reason_of(error, said)
            hint = next((hint for words, hint in HINTS.items() if re.search(words, reason)), "")
            raise SparkRefused(f"cannot start Spark: {reason}", hint=hint) from error
    if is_local:
        # Hadoop would write a second file with checksums beside each Parquet file, which has its
        # own. It starts two processes (chmod) for each file on a local disk.
        context: Any = session.sparkContext
        files = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(
            context._jsc.hadoopConfiguration()
        )
        files.setWriteChecksum(False)
    return session


def _children() -> set[int]:
    """Return the process ids of all child processes. Return an empty set if the kernel does not
    list them."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def _name_this_host() -> None:
    """Set environment variables so that a local session listens on the loopback address.

    The session then works even if the host name of this machine cannot be resolved. Environment
    variables are necessary, because Spark resolves the host name before it reads its configuration.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")


def _name_this_user(builder: Any) -> None:
    """Set a user name for Hadoop if the system has no entry for the user id, as in many containers.

    Otherwise, Hadoop requests the name from the system when Spark starts, and fails.
    """
    if _has_entry() or "spark.master" not in builder._options:
        return
    name = f"uid{os.getuid()}"
    os.environ.setdefault("SPARK_USER", name)
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(builder._options.items())))
    users = cast("Any", SparkContext._jvm).org.apache.hadoop.security.UserGroupInformation
    users.setLoginUser(users.createRemoteUser(name))


def _has_entry() -> bool:
    """Return whether the system has an entry for the user id of this process."""
    with suppress(KeyError):
        return bool(pwd.getpwuid(os.getuid()))
    return False


@contextmanager
def _capture_stderr(words: IO[bytes]) -> Iterator[None]:
    """Redirect stderr to the file `words` during the `with` block.

    Processes that are started in the block write to this file permanently. Their later errors are
    visible only as exceptions in Python.
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
    """Return the innermost error message of Java in one line.

    `said` is the output of Java. If it has no error message, return the message of `error`.
    """
    lines = [line.strip() for line in (said + "\n" + str(error)).splitlines()]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    thrown = [line.partition('" ')[2] for line in lines if line.startswith("Exception in thread")]
    logged = [line.partition(ERROR_LOGGED)[2].partition(": ")[2] for line in lines]
    told = [line for line in lines if line and not line.startswith(SAID_AT_EACH_START)]
    reasons = causes[-1:] or thrown[-1:] or [*filter(None, logged)][:1] or told[:1]
    return reasons[0].strip()[:REASON_CHARACTERS_MAX]


def _options(row_count: int, master: str) -> dict[str, str]:
    """Return the options of a session that this process starts. `master` is "" for a local
    session."""
    java = QUICK_START if row_count < SMALL_ROWS else THROUGHPUT
    if SMALL_ROWS <= row_count < LARGE_ROWS:
        java += " -XX:TieredStopAtLevel=1"
    is_local = not master or master.startswith("local")
    if is_local:
        java += _own_hosts()
    if not _has_entry():  # Java would have no home directory
        java = f"{java} -Duser.home={_scratch()}"
    if LOG_PROPERTIES.is_file():  # absent in a zip on a cluster, and not needed there
        java = f"{java} -Dlog4j2.configurationFile=file:{LOG_PROPERTIES}"
    options = {
        "spark.driver.memory": f"{_driver_mib(row_count)}m",
        "spark.driver.extraJavaOptions": java.strip(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Otherwise each expression is sent together with the Python line that created it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Do not load the extension of MLlib, which has hundreds of classes. `spark.sql.extensions`
        # works.
        "spark.sql.extensions.test.loadFromCp": "false",
    }
    if not is_local:  # workers use their own Python, and the host name of this process
        return options | ON_WORKERS
    options |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    # Tasks need the libraries of this interpreter. In a local session, only this variable sets it.
    if os.environ.setdefault("PYSPARK_PYTHON", sys.executable) == sys.executable:
        paths = os.pathsep.join(map(os.path.abspath, sys.path))
        options |= {DAEMON: OWN_DAEMON, "spark.executorEnv.PYTHONPATH": paths}
    return options


def _own_hosts() -> str:
    """Return the Java option for a hosts file that contains the name of this machine.

    Return "" if the name can be resolved without such a file. The file is necessary because Spark
    resolves the name, whatever its host settings are, if the environment has credentials of an
    object store.
    """
    name = socket.gethostname()
    with suppress(OSError):
        if socket.gethostbyname(name):
            return ""
    path = _scratch() / "hosts"
    path.write_text(f"127.0.0.1 localhost {name}\n", encoding="utf-8")
    return f" -Djdk.net.hosts.file={path}"


def _scratch() -> Path:
    """Return a new temporary directory. It is removed when this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="suture-verify-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _driver_mib(row_count: int) -> int:
    """Return the size of Java's heap in MiB.

    The size grows with the number of rows, up to a third of the memory that this process may use.
    The other two thirds are for the Python processes of the tasks, and for Java's memory outside
    its heap. A larger heap would not help, because Java fills its heap before it frees memory.
    """
    third = limit_bytes() // 3 // 1024**2
    wanted = min(DRIVER_MIB_MIN + row_count * DRIVER_ROW_BYTES // 1024**2, DRIVER_MIB_MAX)
    return max(min(third, wanted), DRIVER_MIB_MIN)


def _fitting(row_count: int) -> dict[str, str]:
    """Return the Spark SQL settings for a run with `row_count` rows.

    They are used only in a session that this process starts.
    """
    is_small = row_count < SMALL_ROWS
    partitions = (
        1
        if is_small
        else max(2 * len(os.sched_getaffinity(0)), -(-row_count // ROWS_PER_PARTITION))
    )
    return {
        "spark.sql.shuffle.partitions": str(partitions),
        # Adaptive planning plans again after each stage, which costs more than it saves for small
        # stages.
        "spark.sql.adaptive.enabled": str(not is_small).lower(),
        "spark.sql.codegen.wholeStage": str(not is_small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if is_small else "FALLBACK",
    }
