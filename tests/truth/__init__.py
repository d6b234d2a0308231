"""The truth check: reports against numbers that an unrelated mechanism takes from a twin."""
