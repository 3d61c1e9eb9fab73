"""Problem sets: where they come from, and how their files become tasks."""
