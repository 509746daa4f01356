"""python -m simulation"""

from .cli import main

main()
