"""Operations on a whole Ozone cluster, through its storage container manager."""
