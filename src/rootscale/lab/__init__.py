"""Many runs on real data: tasks, the engine, ensembles, sweeps and the check."""
