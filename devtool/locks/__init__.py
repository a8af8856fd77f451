"""The locks of the wheels, for pip and for Nix."""
