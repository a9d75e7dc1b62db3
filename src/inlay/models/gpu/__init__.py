"""Kernels for CUDA devices in Triton: packed weights, chosen experts, paged attention.

Plain functions over tensors. Modules here import Triton, so load
them only where it is wanted. Without a GPU they run in Triton's interpreter on CPU tensors
(`TRITON_INTERPRET=1`, set before Triton is first imported), which is how they are tested there.
"""
