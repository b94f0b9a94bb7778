"""Numbers that another implementation can be held against, and what writes them."""
