"""Elastic jobs: starts one after the other, on hosts that come and go."""
