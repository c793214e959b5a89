"""A network as data, and what it costs; needs no torch."""
