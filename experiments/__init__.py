"""The experiments behind the result pages in docs: plans, runner, raw results, tables and figures."""
