"""Time and latency, measured."""
