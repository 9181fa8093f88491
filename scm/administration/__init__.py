"""Changes that operators and plans request, previewed first and then made; and departing nodes."""
