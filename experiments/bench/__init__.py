"""The parts of experiments/benchmark.py."""
