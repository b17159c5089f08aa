"""The shared part of both packages' guides, without a tensor."""
