"""Runtime of every process: worker loops, leases, clocks, threads, HTTP listener."""
