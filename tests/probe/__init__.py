"""A library of handlers that only tests call, compiled on first use."""
