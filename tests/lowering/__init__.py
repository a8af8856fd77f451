"""pyxla.lowering: from a call to a custom call, and the cache key."""
