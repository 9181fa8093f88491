"""The recorded history of the cluster, interval by interval."""
