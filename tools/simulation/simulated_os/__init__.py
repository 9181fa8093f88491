"""The simulated environment of the product: kernel, disks, threads, network, time."""
