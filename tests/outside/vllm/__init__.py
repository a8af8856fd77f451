"""vLLM's own tests, from its source distribution, against a list of known failures.

python -m tests.outside.vllm FOLDER

__main__.py       the command line, and what is substituted
source.py         what is run of the source distribution
hub.py            tiny models under the names in the tests
plugin.py         hooks of pytest, in the child process
defaults.py       smaller steps where a test leaves their size to vLLM
files.toml        the rule by which files are chosen
known.toml        the failures that are known, each with its reason
"""
