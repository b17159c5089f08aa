"""How a fit searches, when it is done, and what it says of its result."""
