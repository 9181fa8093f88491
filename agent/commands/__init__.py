"""Processing of the SCM's commands: from the heartbeat, through queues, to the handlers."""
