"""Commands that change something in the cluster: each is shown before it is done."""
