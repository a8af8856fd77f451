"""What `devtool tune grouped_product` chooses: the tiles of decode steps, whose CTAs stream the weights of experts."""

# Blocks of 16 columns that a warp computes, blocks of eight rows of a tile, stages of 64 elements of k. The larger they
# are, the fewer CTAs an SM has room for: then no other one loads while a CTA begins or ends.
PARAMETERS = {"column_blocks": (1, 2), "row_blocks": (2, 4, 8), "stages": (3, 4, 6)}
# The rows of an expert, on average. Most calls above the last class sort their rows, for a kernel without parameters.
CLASSES = {"rows_per_expert": (1, 8, 64), "k": (1024,)}


def key(x, weight, experts, **arguments) -> dict[str, int]:
    """What the launch function computes."""
    return {"rows_per_expert": -(-experts.numel() // max(1, weight.shape[0])), "k": x.shape[-1]}


def start(rows_per_expert: int, k: int) -> dict[str, int]:
    """Chosen by hand: an expert reads its weight once for up to 16 rows or 64."""
    return {"column_blocks": 1, "row_blocks": 2 if rows_per_expert <= 1 else 8, "stages": 6}
