"""One start of a job: from the user's options to the exit code and its explanation."""
