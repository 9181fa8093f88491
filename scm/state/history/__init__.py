"""What the control plane remembers of itself: how the cluster was, interval by interval."""
