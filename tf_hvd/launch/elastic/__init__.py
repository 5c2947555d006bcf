"""Elastic jobs: successive starts of a job, on a changing set of hosts."""
