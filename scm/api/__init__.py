"""The control plane's external interfaces: RPCs, snapshots, pages, and the loop with Spark."""
