"""Ops of the three routes, and the manifests of their libraries."""
