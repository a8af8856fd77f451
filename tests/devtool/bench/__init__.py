"""`devtool bench`: runs, and what is kept, compared and drawn of them."""
