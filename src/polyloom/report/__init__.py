"""One page that shows a run, or several side by side, and needs neither network nor script."""
