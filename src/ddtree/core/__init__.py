"""The algorithm: tree building, layout, acceptance, windows. Pure functions on tensors."""
