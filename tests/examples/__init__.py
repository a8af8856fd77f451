"""examples/."""
