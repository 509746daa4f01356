"""python -m simulation"""

import sys

try:
    from .cli import main

    main()
except KeyboardInterrupt:
    sys.exit(130)
