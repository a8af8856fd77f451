"""Tests in a process with four devices, which tests/spmd/test_shard.py starts."""
