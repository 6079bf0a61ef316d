"""GGUF files as models: header validation and conversion to a Hugging Face folder."""

from recovery.models.gguf_files.header import Header, is_gguf, origin_of, origin_text, read_header, sha256_of

__all__ = ["Header", "is_gguf", "origin_of", "origin_text", "read_header", "sha256_of"]
