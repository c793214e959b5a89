"""Descriptions of networks, and their cost; does not need torch."""
