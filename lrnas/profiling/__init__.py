"""Measured times of layers and networks, and the latency table."""
