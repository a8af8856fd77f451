"""The op folders; installed as `pyxla_kernels`. README.md here is the contract of an op folder."""
