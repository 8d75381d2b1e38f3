"""Conversations as other programs store them, and as CFS exports them. Pure: text in, values out."""
