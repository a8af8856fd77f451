"""What test runs and benches leave on record."""
