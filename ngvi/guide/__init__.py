"""What guides are told, and decide, without a tensor."""
