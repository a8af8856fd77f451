"""A general plugin of vLLM, in each of its processes: smaller steps where a test leaves their size to vLLM.

vLLM's defaults, 8192 tokens and 256 requests, are for GPUs; on the CPU they are minutes of compilation in each test.
"""

TOKENS, REQUESTS = 512, 16


def register() -> None:
    """Called by vLLM."""
    from vllm.engine.arg_utils import EngineArgs

    defaults = EngineArgs._set_default_args

    def smaller(self, *args, **options):
        if self.max_num_seqs is None:
            self.max_num_seqs = REQUESTS
        # Without chunked prefill vLLM takes the longest prompt.
        if self.max_num_batched_tokens is None and self.enable_chunked_prefill is not False:
            self.max_num_batched_tokens = max(TOKENS, self.max_num_seqs)
        return defaults(self, *args, **options)

    EngineArgs._set_default_args = smaller
