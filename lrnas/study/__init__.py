"""A study: its trials, costs and fronts, and the storage that holds them. Needs neither torch nor Ray."""
