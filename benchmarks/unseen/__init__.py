"""Models that stay unseen: sealed parts, and the command that opens one (``docs/unseen.md``)."""
