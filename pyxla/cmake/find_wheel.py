"""Prints an installed wheel's version and where it has a folder, for CMake, or NONE if the wheel is not installed.

find_wheel.py <name of the wheel> <folder in it>
"""

import importlib.metadata
import sys

name, folder = sys.argv[1:]
try:
    wheel = importlib.metadata.distribution(name)
except importlib.metadata.PackageNotFoundError:
    print("NONE")
else:
    print(wheel.version, wheel.locate_file(folder), sep=";")
