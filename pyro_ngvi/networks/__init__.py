"""What only networks use: gradients of single examples, Kronecker families, plain optimisers."""
