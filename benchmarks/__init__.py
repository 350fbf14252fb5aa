"""Benchmarks: `python -m benchmarks.NAME`, with `--help` for what is measured and `--tiny` to see that it runs.

Raw results are in `results/`, named after the script and its measurement. Run them on a quiet machine.
"""

import os

# Before torch is imported. `polyloom` does the same: fresh memory comes in pages of 2 MB.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
