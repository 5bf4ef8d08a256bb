"""Tools on arrays: nearest neighbours, threads, reproducible draws."""
