"""Read corpora, store encoded examples in blocks, and draw batches from them."""
