"""The parts of experiments/survival.py."""
