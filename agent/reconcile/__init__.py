"""Makes a replica equal to its peers: survey them, plan (agent.plan), fetch, mend, judge."""
