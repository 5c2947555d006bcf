"""Collectives as functions of tensors, with their derivatives."""
