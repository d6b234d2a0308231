"""What narrower dtypes would lose."""
