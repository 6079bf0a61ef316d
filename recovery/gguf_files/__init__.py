"""GGUF files as models: their header read and checked, then converted once to an ordinary folder."""

from recovery.gguf_files.header import Header, is_gguf, origin_of, origin_text, read_header, sha256_of

__all__ = ["Header", "is_gguf", "origin_of", "origin_text", "read_header", "sha256_of"]
