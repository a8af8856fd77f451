"""pytorch/xla's own tests, from a checkout of pytorch/xla, against a list of known failures.

python -m tests.outside.torch_xla FOLDER

__main__.py       the command line
checkout.py       what is run of the checkout
plugin.py         what the main blocks of the tests do, in the child process
files.toml        the rule by which files are chosen, and what they need in the environment
known.toml        the failures that are known, each with its reason
"""
