"""The images: what is in them, and that the program behaves in them as it does outside."""
