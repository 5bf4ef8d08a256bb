"""Sub-commands of `nescio`: they parse and print; what they compute lives in the library.

A command is a module with a docstring, which is the description of --help, and

    @dataclass(frozen=True, kw_only=True)
    class Options:                                   # fields of nescio.options: option(), argument(), nested()
        files: tuple[str, ...] = argument("predictions", metavar="FILE")

    def run(options: Options) -> int:                # the exit code: 0 fine, 1 when work failed, 2 for bad input

A command with commands of its own (`run`, `store`) has `configure(parser)` and `run(args)` instead. Bad input, missing
packages and failures of the store are raised; `nescio.cli` turns them into a sentence.
"""
