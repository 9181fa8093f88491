"""Client that stores and reads files. Other programs use `client` and `async_client`."""
