"""Starts PySpark's daemon of Python workers in a local session, with compiled modules.

Spark puts an archive of PySpark first on the path of its workers. Python compiles the modules of an
archive again at each start, which takes half a second. This module moves the archive to the end.
"""

import runpy
import sys

if __name__ == "__main__":
    sys.path.sort(key=lambda path: path.endswith("pyspark.zip"))
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
