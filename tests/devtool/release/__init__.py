"""What leaves the checkout: the flake, wheels, libraries that are verified, artifacts that are run."""
