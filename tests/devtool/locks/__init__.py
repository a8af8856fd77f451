"""requirements/ and the set-up of .venv."""
