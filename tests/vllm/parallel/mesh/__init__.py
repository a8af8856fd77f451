"""Tests in a process with two devices, which tests/vllm/parallel/test_tensor_parallel.py starts."""
