"""Experiments: each has `resolve(config)` (checks it and fills it in) and `run(config, workdir)`."""
