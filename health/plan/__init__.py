"""Plans: the actions that repair the containers of a batch. Each row has one action and its
reason."""
