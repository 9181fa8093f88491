"""Runtime of every process: worker loops, clocks, threads, durable files, HTTP listener."""
