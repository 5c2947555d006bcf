"""Scripts that run on each machine of a job. They import only the standard library."""
