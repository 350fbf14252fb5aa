"""Tables of the result pages: one module per page, each with ``TABLES`` by name."""
