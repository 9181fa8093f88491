"""suture.v1.Datanode: the service of one storage host."""
