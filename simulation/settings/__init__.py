"""The settings of a run: their declarations, how they are read from every source, and the resulting configuration."""

from twinflower.settings import Value

from .config import PATHS, Config
from .reader import completed, parse, parse_run_config, parse_text
from .rules import check
