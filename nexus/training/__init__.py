"""Training of small parts beside a frozen model: gated attention, losses, records, packing, the step."""
