"""The records of test runs and benches."""
