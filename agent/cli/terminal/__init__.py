"""What commands of `suture` share: their options, their connection, how they speak."""
