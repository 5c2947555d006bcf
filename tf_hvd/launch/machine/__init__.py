"""What runs on each machine of a job, as files: all of it knows the standard library alone."""
