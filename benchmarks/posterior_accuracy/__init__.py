"""What it costs until means and standard deviations are right; see ``__main__.py``."""
