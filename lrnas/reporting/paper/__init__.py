"""The paper's figures, drawn again with what was measured here."""
