"""What a report shows as charts."""
