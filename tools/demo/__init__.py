"""`suture demo`: a small cluster from scratch, damaged and healed before your eyes."""
