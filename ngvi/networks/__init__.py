"""Parts for networks: gradients of examples, Kronecker families, plain optimisers."""
