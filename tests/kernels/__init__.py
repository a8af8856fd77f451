"""Ops of the three routes, and what the build says of their libraries."""
