"""One BLAS thread, and Hypothesis without deadlines: CI machines stall."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
