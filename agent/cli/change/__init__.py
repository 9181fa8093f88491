"""Commands that change the cluster; each shows its effect before it acts."""
