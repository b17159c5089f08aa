"""The decisions of natural-gradient variational inference, without a tensor.

Which latents belong together (:mod:`ngvi.latents`), how a fit searches, when it is done and
what it says of its result (:mod:`ngvi.inference`). ``pyro_ngvi`` and ``numpyro_ngvi`` compute; this
package needs numpy and scipy only, and neither torch nor jax.
"""

from ngvi._warn import UsageWarning as UsageWarning
from ngvi.errors import DamagedFileError as DamagedFileError

__version__ = "0.4.0"
