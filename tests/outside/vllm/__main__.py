"""Runs vLLM's own tests on this platform and says what fails beside what is known to fail.

python -m tests.outside.vllm FOLDER [--device CUDA] [--workers 1] [--seconds 330] [--json OUT] [--resume]

FOLDER is the unpacked source distribution of the installed vLLM. Needs `pip install tblib pytest-asyncio`.
No test is changed, and nothing is downloaded. Three things are substituted:
- the models: tiny ones of the same architectures, with weights fitted to the tests' own text for some seconds (hub.py);
- vLLM's defaults for the size of a step, where a test leaves it open: 512 tokens, 16 requests (defaults.py);
- the device of transformers, which some tests compare with: the host (plugin.py).
Exit status: 0 nothing new, 1 something new fails, 2 wrong arguments, 3 nothing new so far but some tests had no time.
"""

import sys

from tests.outside.suite.command import main
from tests.outside.vllm.source import Vllm

if __name__ == "__main__":
    sys.exit(main(Vllm, __doc__.splitlines()[0]))
