"""`suture demo`: a small cluster from nothing, damaged and healed before your eyes."""
