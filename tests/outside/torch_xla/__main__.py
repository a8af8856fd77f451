"""Runs pytorch/xla's own tests and says what fails beside what is known to fail.

python -m tests.outside.torch_xla FOLDER [--device CUDA] [--workers 12] [--seconds 330] [--json OUT] [--resume]

FOLDER is a checkout of pytorch/xla at the tag of the installed torch_xla. Needs pytest, and what the tests import: a
file that cannot be imported is reported with the reason.
Exit status: 0 nothing new, 1 something new fails, 2 wrong arguments, 3 nothing new so far but some tests had no time.
"""

import sys

from tests.outside.suite.command import main
from tests.outside.torch_xla.checkout import TorchXla

if __name__ == "__main__":
    sys.exit(main(TorchXla, __doc__.splitlines()[0]))
