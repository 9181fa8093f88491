"""The gRPC services of the agent: suture.v1.Datanode."""
