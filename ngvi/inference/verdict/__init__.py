"""Claims of a fit: certificate, checks, better optima, verdict."""
