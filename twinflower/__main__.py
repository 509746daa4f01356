"""The command line: `twinflower`, or `python -m twinflower`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C exits with status 130, also during the imports."""
    try:
        from twinflower.simulation.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
