"""Commands for one host: options, certificates, offline volumes, and the demo."""
