"""What went wrong in a set-up, in plain words, and what to do. It imports the standard library only."""

import errno
import re

FULL_DISK = ("the disk is full", "free some space: .venv and uv's cache share 9 GB (cpu) or 13 GB (cuda13)")
# Text in the output of pip or uv -> what went wrong, what to do. The first match counts: without a network, the output
# also contains "No matching distribution".
SYMPTOMS = (
    ("DO NOT MATCH THE HASHES|Hash mismatch", "a package does not match its locked hash",
     "pip cache purge; uv cache clean; then try again; if it fails again, the mirror serves files that are not locked"),
    ("No space left on device|Disk quota exceeded|Errno 27|File too large", *FULL_DISK),
    ("Read-only file system|Permission denied", "a folder is not writable", "make it writable (see above)"),
    ("NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError|ProxyError|Network is unreachable"
     "|error sending request|[Nn]etwork connectivity is disabled|operation timed out",
     "the package index cannot be reached", "check the network, or set a mirror: PIP_INDEX_URL or UV_DEFAULT_INDEX"),
    ("No matching distribution found|No solution found", "the package index lacks a locked package",
     "check PIP_INDEX_URL, PIP_NO_INDEX, pip config list, UV_DEFAULT_INDEX and uv.toml"),
)  # fmt: skip


class SetUpError(Exception):
    """A message and a hint."""


def diagnosis(tool: str, status: int, said: str) -> SetUpError:
    got, hint = next(
        ((got, hint) for pattern, got, hint in SYMPTOMS if re.search(pattern, said)),
        (f"exit status {status}", f"read the message of {tool} above"),
    )
    return SetUpError(f"{tool} failed: {got}", hint)


def from_os_error(error: OSError) -> SetUpError:
    where = f"{error.strerror}: {error.filename or 'no file named'}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SetUpError(f"the disk is full ({where})", FULL_DISK[1])
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return SetUpError(f"the folder is not writable ({where})", "make it writable, or copy the tree elsewhere")
    return SetUpError(f".venv could not be made ({where})", "check the path above, then try again")
