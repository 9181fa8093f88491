"""Security in a secure Ozone cluster: secret keys, tokens, and certificates from the SCM's CA."""
