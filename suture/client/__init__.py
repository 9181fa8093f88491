"""Client that stores and reads files. Programs use `cluster_client` and `writer`."""
