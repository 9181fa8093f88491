"""The balancer, which moves replicas so that all datanodes are about equally full."""
