"""Matrices: triangles, batches of small ones, arrows, low rank, and positive definite steps.

Nothing here knows of a Gaussian, nor of torch or jax: the algebra stands here once, and the
packages' ``linalg`` write the few operations in which the two libraries differ. ``xp`` is torch or
``jax.numpy``, of which only functions are used that both spell alike.
"""
