"""The parts of experiments/dilution.py."""
