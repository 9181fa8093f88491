"""Commands that change the cluster. Each command shows its effect before it changes anything."""
