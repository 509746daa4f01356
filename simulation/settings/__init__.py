"""Settings of a run: declared with what they set, read from every door, written to run folders."""

from twinflower.settings import Value

from .config import DEFAULT_CLIENTS, PATHS, Config, check
from .reader import parse, parse_run_config, parse_text

__all__ = ["DEFAULT_CLIENTS", "PATHS", "Config", "Value", "check", "parse", "parse_run_config", "parse_text"]
