"""Search spaces: what can vary in a network, read from TOML files."""
