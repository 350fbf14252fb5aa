"""Read corpora, encode them as memory-mapped datasets, and draw batches from the datasets."""
