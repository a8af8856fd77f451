"""Chooses the values of a kernel's parameters for each class of shapes, by building and timing all of them."""
