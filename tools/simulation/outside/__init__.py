"""What is outside of the product, and simulated: kernel, disks, threads, network, time."""
