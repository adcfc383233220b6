"""One file per experiment that a person runs; `base.py` holds what they share."""
