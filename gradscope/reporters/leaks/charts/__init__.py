"""What a page or a picture of leaks draws."""
