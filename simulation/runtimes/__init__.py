"""Where a run trains: in this process, as a cohort of arrays, on Flower's engine, or on SuperNodes of this machine."""
