"""What runs of tests and benches leave on disk."""
