"""What a script does on XLA: recorded while it runs (recorder), read afterwards (report). `devtool trace` uses both."""
