"""Calls ops with random inputs, for `devtool fuzz`: valid ones must give the reference's numbers, others an error."""
