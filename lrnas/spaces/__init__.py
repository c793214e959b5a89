"""Search spaces, read from TOML files: the parameters of a network that can vary."""
