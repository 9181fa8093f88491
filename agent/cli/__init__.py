"""The command `suture` for operators."""
