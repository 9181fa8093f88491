"""The recorded history of the cluster: samples, changes of the verdict, and verifications."""
