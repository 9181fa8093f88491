"""Operations on a replica: write, read, close, delete, repair, import, export, record scans."""
