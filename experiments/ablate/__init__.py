"""Parts of experiments/ablation.py."""
