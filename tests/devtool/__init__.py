"""The commands of devtool that have no folder of their own here."""
