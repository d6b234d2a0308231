"""What an exception means: its kind, what met what, the smallest fix."""
