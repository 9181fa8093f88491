"""The status of the cluster: current facts, the verdict on the data, and the history of both."""
