"""Data sets, their splits, and batches of images."""
