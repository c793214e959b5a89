"""Figures as PNG, SVG or PDF files."""
