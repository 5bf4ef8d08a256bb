"""nescio: predictive uncertainty of image models, evaluated."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it: importing typing would take as long as all the rest

__version__ = "0.1.0"

_MODULES = {  # what is imported when it is first used, and where it is: `import nescio` loads nothing else
    **dict.fromkeys(("BadInput", "Undefined"), "errors"),
    **dict.fromkeys(("Predictions", "join", "stack"), "predictions"),
    "scorecard": "analysis.scorecard",
}
_MODULES["run"] = "api.run"  # its parameters depend on the benchmark
_FUNCTIONS = {  # functions with the parameters of the command of the same name
    "calibrate": "calibration",
    "choose": "choice",
    "compare": "comparison",
    "evaluate": "evaluation",
    "export": "export",
    "rank": "rank",
    "threshold": "thresholds",
    "transfer": "transfer",
    "verify": "verification",
    "zoo": "zoo",
}
__all__ = ["__version__", *sorted({*_MODULES, *_FUNCTIONS})]


def __getattr__(name: str) -> object:
    if name in _FUNCTIONS:
        function = getattr(import_module(f"nescio.api.{_FUNCTIONS[name]}"), name)
        globals()[name] = import_module("nescio.api.calls").with_parameters(function)
        return globals()[name]
    if name not in _MODULES:
        raise AttributeError(f"module 'nescio' has no attribute {name!r}")
    if name == "scorecard":  # its results have charts and pages
        import_module("nescio.api.results")
    return getattr(import_module(f"nescio.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
