"""Dead and saturated units."""
