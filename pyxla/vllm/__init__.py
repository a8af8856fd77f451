"""vLLM on XLA: its platform, worker, model runner, attention and layers. vLLM imports it; `import pyxla` does not.

vLLM's scheduler, cache manager and the processing of requests and outputs are used as they are. They hand a step to the
worker, whose runner computes it as one graph.
"""
