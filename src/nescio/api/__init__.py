"""The functions of `nescio`: the same parameters and numbers as the commands, with typed results.

A module has a frozen dataclass of options (fields of `nescio.options`) and one function of it. The command adds options
of the output to the class, and prints the result. `nescio.NAME` gives the function keyword parameters, see
`nescio.api.calls`.
"""
