"""What was published and does not hold as stated, kept to compare with: nothing here is private."""
