"""Training, checkpoints and tests of single networks."""
