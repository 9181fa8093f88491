"""Takes part in a secure cluster: secret keys, tokens, certificates of the SCM's CA."""
