"""Write and read adapters as files: in Polyloom's format and in those of other libraries."""
