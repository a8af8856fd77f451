"""pytorch/xla's own tests, from a checkout of pytorch/xla, against a list of known failures.

python -m tests.outside.torch_xla FOLDER

__main__.py       the command line
checkout.py       which files of the checkout are run, and how
child.py          runs in a process of its own: some tests of one file, a line of JSON per event
runner.py         starts these processes, several at a time, and ends those that hang
known.py          compares the results with known.toml
files.toml        the rule by which files are chosen, and what they need in the environment
known.toml        the failures that are known, each with its reason
"""
