"""Evaluation tasks: each yields the same `example.Example`, whatever benchmark it belongs to."""
