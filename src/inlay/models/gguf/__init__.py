"""GGUF files as model directories: metadata, tokenizer and tensors of llama.cpp's format.

directory = gguf_directory(Path("Qwen3-8B-Q4_K_M.gguf"))
model = load_model(directory)
"""

from inlay.models.gguf.directory import gguf_directory

__all__ = ["gguf_directory"]
