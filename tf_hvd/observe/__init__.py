"""Explanations of a job's recordings and timelines for the user."""
