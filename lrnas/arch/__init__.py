"""Descriptions of networks, and their cost; needs no torch."""
