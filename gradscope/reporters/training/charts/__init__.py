"""What a run shows as charts."""
