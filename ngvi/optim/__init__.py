"""The rules by which optimisers move families, written once for both tensor libraries."""
