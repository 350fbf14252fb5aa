"""From files to memory-mapped cells, and from cells to batches."""
