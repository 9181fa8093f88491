"""Transfer of complete replicas between datanodes: the sender and the receiver."""
