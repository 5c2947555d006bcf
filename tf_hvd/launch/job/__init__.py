"""One start of a job: from what the user asked for to the exit code and what is said of it."""
