"""Runs another project's own tests and compares the failures with a kept list; for tests.outside.torch_xla and vllm.

command.py        the command line
files.py          which files are run, and how: what each project says of its tests
runner.py         starts child processes, several at a time, and ends those that hang
child.py          runs in a process of its own: some tests of one file, a line of JSON per event
known.py          compares the results with the kept list
report.py         prints what the results say
"""
