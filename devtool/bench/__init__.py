"""Times ops beside XLA and their peers; compares, draws and keeps the runs."""
