"""The structure of a latent vector: its sites, their plates, who depends on whom."""
