"""Client: stores files and reads them back; programs call `cluster_client` and `writer`."""
