"""The page of `devtool report`."""
