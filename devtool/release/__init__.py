"""What leaves the checkout: verified libraries, exported functions, outputs of the flake, pages of the docs."""
