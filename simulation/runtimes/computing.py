"""How a process computes: with one thread, reusing freed memory, and with few garbage collections.

One thread gives bit-identical results in every runtime; `run --jobs` and Flower's engine use the other cores.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache

import numpy as np
from threadpoolctl import threadpool_limits


@contextmanager
def computing() -> Iterator[None]:
    """Compute like this within the block, in a process that also does other work."""
    reuse_freed_memory()
    with threadpool_limits(1):
        yield


def compute_only() -> None:
    """Compute like this from now on. Call it again where another library may have been loaded since."""
    reuse_freed_memory()
    _use_one_thread(len(sys.modules))


def keep_all() -> None:
    """Leave all objects that exist now out of garbage collections.

    Every collection would scan all modules and settings, which takes longer than some rounds.
    """
    gc.freeze()


@lru_cache(maxsize=1)
def _use_one_thread(modules: int) -> None:
    """Limit numerical libraries to one thread.

    modules: the number of imported modules. Only a new one can have loaded another library; the search for libraries
    takes longer than some rounds.
    """
    threadpool_limits(1)


@cache
def reuse_freed_memory() -> None:
    """Make C's malloc keep large freed blocks for later arrays, instead of returning each to the operating system.

    glibc raises its threshold to the size of the largest block freed so far, up to 32 MiB. Without this, arrays above
    128 KiB cost a page fault for every 4 KiB, which can take longer than the computation. No memory is touched. A
    round of 90 clients with d = 7840 in double precision takes 1.3 times as long without it.
    """
    np.empty(31 * 2**20, np.uint8)
