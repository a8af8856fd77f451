"""What XLA makes of an op or a script, as text and as a picture."""
