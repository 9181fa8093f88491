"""An overview of the cluster: current facts, verdict, and history."""
