"""The rows of the table of faults."""
