"""SciPy's special functions by name, such as `special.expit`; imported when one is first used.

Importing `scipy.special` takes about half a second, longer than everything else that `twinflower list` needs.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import scipy.special

    function = globals()[name] = getattr(scipy.special, name)
    return function
