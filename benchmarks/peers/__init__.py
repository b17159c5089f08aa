"""The field's own Gaussians beside ours, on the same models in one run; see ``__main__``."""
