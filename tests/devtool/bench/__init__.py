"""`devtool bench`: its runs, and how they are saved, compared and plotted."""
