"""The gRPC service of the agent, suture.v1.Datanode."""
