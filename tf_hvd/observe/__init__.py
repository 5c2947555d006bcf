"""What the job does, for the eye."""
