"""Conversations: one context or one long session, many questions, answered in turns or from one cached state."""
