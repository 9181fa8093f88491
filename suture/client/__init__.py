"""The client, which stores and reads files. Other programs use the modules `client` and
`async_client`."""
