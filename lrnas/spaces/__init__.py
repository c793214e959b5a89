"""What a search may vary: from a TOML file to parameters, to architectures and back."""
