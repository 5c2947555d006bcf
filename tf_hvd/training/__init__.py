"""Gradients of several ranks as one: optimizers, tapes, hooks, data."""
