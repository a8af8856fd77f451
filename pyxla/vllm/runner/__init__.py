"""The model runner: what vLLM's scheduler has planned becomes a step of the device, one graph from tokens to tokens."""
