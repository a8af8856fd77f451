"""A Llama-architecture decoder that serves requests with the ops of this repository.

Read it in this order: model.py (the decoder), scheduler.py (which tokens make a step), engine.py (steps on the
device), __main__.py (the command). config.py, weights.py, sampling.py and tokenizer.py are helpers.
"""
