"""The losslessness procedure: grades of outputs against a baseline."""
