"""Records of test runs and bench runs on disk."""
