"""Parts of experiments/train.py."""
