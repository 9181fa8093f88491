"""What is done to a replica: write, read, close, delete, repair, receive, send, record scans."""
