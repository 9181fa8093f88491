"""Commands for one host: options, certificates, volumes without an agent, the demo."""
