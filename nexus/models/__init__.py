"""Decoder models, their weights and their tokenizers. Nothing here knows a cache or an eviction method."""
