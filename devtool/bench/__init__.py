"""Times ops, XLA and baselines; compares, draws and saves the runs."""
