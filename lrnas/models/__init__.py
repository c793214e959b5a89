"""From the description of a network to a timm model, and from any model back to counts."""
