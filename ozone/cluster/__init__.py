"""Operations on a complete Ozone cluster, through its storage container manager."""
