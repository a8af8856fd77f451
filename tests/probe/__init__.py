"""A library of handlers for tests, compiled at first use."""
