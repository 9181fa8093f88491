"""What every process of ours runs on: loops of workers, leases, clocks, threads, plain HTTP."""
