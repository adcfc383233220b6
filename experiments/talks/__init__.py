"""Parts of the dialogue experiment (experiments/dialogue.py): settings, the conversation itself, rows, report."""
