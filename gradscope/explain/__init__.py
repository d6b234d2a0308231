"""Why something went wrong, in the user's terms: errors (errors)."""
