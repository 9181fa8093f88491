"""The common parts of every process: worker loops, clocks, threads, durable files, the HTTP
listener."""
