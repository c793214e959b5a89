"""Models built from descriptions of networks, and the counts of any model."""
