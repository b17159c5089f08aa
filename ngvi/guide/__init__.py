"""What the guides of both packages share, without a tensor."""
