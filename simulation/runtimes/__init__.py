"""The runtimes: in this process, as a cohort of arrays, on Flower's engine, or on SuperNodes on this machine."""
