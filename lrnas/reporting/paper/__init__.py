"""The paper's figures: published numbers, and those measured by this project."""
