"""The SCM's commands: from the heartbeat, through queues, to the handlers that execute them."""
