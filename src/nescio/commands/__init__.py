"""Sub-commands of `nescio`: each module has a docstring for --help, `configure(parser)` and `run(args)`."""
