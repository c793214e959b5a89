"""The paper's figures: published numbers, and numbers measured by this project."""
