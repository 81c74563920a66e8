"""Golden numbers: cases, records of their values, and the command that writes them."""
