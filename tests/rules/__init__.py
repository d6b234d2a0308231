"""The rules: each on records by hand, and all of them on broken programs as users write them."""
