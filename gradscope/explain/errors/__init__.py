"""What an exception means: its kind, which operands conflict, the smallest fix."""
