"""The parameters of the gated activations' kernel, which each of these ops has tuned for itself."""

# Threads of a CTA, and vectors of the result that each of them computes.
PARAMETERS = {"threads": (128, 256, 512, 1024), "vectors_per_thread": (1, 2, 4)}
# Vectors of the result. The times of few of them are latency, those of many bandwidth.
CLASSES = {"vectors": (1 << 18,)}


def allowed(threads: int, vectors_per_thread: int) -> bool:
    """Not so many per CTA that the last wave of CTAs leaves much of the GPU idle."""
    return threads * vectors_per_thread <= 2048


def key(x, **attributes) -> dict[str, int]:
    """What the launch function computes: the vectors of 16 bytes of the result, half of x."""
    return {"vectors": x.numel() * x.element_size() // 32}


def start(vectors: int) -> dict[str, int]:
    """Chosen by hand on an H200."""
    return {"threads": 256, "vectors_per_thread": 1}
