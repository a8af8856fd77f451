"""The parameter of the norms' kernel, which each of these ops has tuned for itself."""

# Vectors that a thread keeps in registers: the fewer, the more threads has a row. A row that is too long for them is
# read twice, which is right but slow.
PARAMETERS = {"vectors_per_thread": (1, 2, 4, 8)}
# The time of few rows is that of one CTA. Vectors of a row: one for each thread of a warp, then 1, 2 and 4 for each of
# 512 threads.
CLASSES = {"rows": (256,), "vectors": (32, 512, 1024, 2048)}


def key(x, **arguments) -> dict[str, int]:
    """What the launch function computes: the rows, and the vectors of 16 bytes of one."""
    hidden = x.shape[-1]
    return {"rows": x.numel() // max(1, hidden), "vectors": hidden * x.element_size() // 16}


def start_for(vectors: int, most: dict[int, int]) -> dict[str, int]:
    """The values that hand-written bounds give: vectors per thread -> the most vectors of a row that they are for."""
    return {"vectors_per_thread": next((count for count, largest in most.items() if vectors <= largest), 8)}
