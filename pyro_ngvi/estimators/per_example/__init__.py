"""Gradients of single examples, by rows of activations."""
