"""A Llama-architecture decoder that continues one batch of prompts with the ops of this repository.

Read it in this order: model.py (the decoder), runner.py (prefill and decode steps on the device), generate.py (the loop
over them), run.py (the command). config.py, rotary.py, weights.py, checkpoint.py and tokenizer.py are helpers.
"""
