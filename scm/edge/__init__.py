"""What others see of the control plane: calls, snapshots, pages, and the loop with Spark."""
