"""What a start makes right before anything is served, and fsck, which only looks."""
