"""Published tables and figures, run again: the source, this run, and what is certified."""
