"""The peers of the comparison: this library, other libraries, and the machine's limits."""
