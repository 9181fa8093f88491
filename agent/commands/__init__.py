"""The SCM's commands, from the heartbeat through the queues to the handlers that carry them out."""
