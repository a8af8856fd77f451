"""Deliverables: the flake, wheels, verified libraries, artifacts."""
