"""The command: `python -m examples.llama --config tiny --prompt "Once upon a time"`."""

from __future__ import annotations

import os
import sys

import click

DEVICES = {"cpu": "CPU", "cuda": "CUDA"}
# A step of 64 rows is 4 % faster with cuBLAS than with the kernels that XLA generates for products (H200, 2026-11-22).
# XLA_FLAGS comes after it and takes precedence.
CUBLAS = "--xla_gpu_enable_triton_gemm=false"


@click.command()
@click.option("--config", default="tiny", help="Shape of a model with random weights: tiny or llama-3-8b [tiny]")
@click.option("--weights", metavar="FOLDER", help="Folder of config.json, *.safetensors and tokenizer.json instead")
@click.option(
    "--prompt", "prompts", multiple=True, metavar="TEXT", help="A text to continue; may be given several times"
)
@click.option("--max-tokens", default=64, help="Tokens to generate per prompt [64]")
@click.option("--temperature", default=0.0, help="What logits are divided by; 0 takes the likeliest token [0]")
@click.option("--seed", default=0, help="Seed of random weights and draws [0]")
@click.option("--mode", help="direct or compile [PYXLA_ATTENTION_MODE, else direct]")
@click.option("--device", help="cpu or cuda [PJRT_DEVICE, else cpu]")
@click.option("--tensor-parallel", default=1, metavar="N", help="Devices that share heads and MLP [1]")
@click.option("--dtype", help="float32, bfloat16 or float16 [float32 on cpu, bfloat16 on cuda]")
@click.option("--kv-cache-dtype", default="auto", help="auto, as --dtype, or float8_e4m3fn [auto]")
def main(device: str | None, tensor_parallel: int, **options) -> None:
    """Continue prompts with a Llama-architecture decoder

    \b
    Example: python -m examples.llama --config tiny --prompt "Once upon a time"

    \b
    Texts go to stdout; the time and the number of compilations to stderr.
    Exit status 1 for a broken folder, 2 for wrong options.
    """
    if device is not None and device not in DEVICES:
        click.echo(f"llama: device: expected {' or '.join(DEVICES)}, got {device}", err=True)
        sys.exit(2)
    # Before the import of torch_xla, which starts the named device.
    os.environ["PJRT_DEVICE"] = DEVICES[device] if device else os.environ.get("PJRT_DEVICE", "CPU")
    if os.environ["PJRT_DEVICE"] == "CPU" and tensor_parallel > 1:
        os.environ.setdefault("CPU_NUM_DEVICES", str(tensor_parallel))
    if os.environ["PJRT_DEVICE"] == "CUDA":
        os.environ["XLA_FLAGS"] = f"{CUBLAS} {os.environ.get('XLA_FLAGS', '')}".strip()
        if tensor_parallel > 1:
            # Otherwise XLA updates the step's captured graph on each GPU, in each step.
            os.environ.setdefault("PYXLA_ALLOCATOR", "vmm")
    from pyxla import ArgumentError, PyxlaError

    try:
        from examples.llama.run import run

        run(tensor_parallel=tensor_parallel, **options)
    except PyxlaError as error:
        click.echo(error, err=True)
        sys.exit(2 if isinstance(error, ArgumentError) else 1)


if __name__ == "__main__":
    main(prog_name="python -m examples.llama")
