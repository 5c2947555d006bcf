"""Collectives as functions on tensors, with their derivatives."""
