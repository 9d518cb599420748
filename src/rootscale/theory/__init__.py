"""The paper's mathematics as working code: oracle -> {discrete, SVAG, SDE} -> `Trajectory`."""
